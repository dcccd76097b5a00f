//! svc-wallet
