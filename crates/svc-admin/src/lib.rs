//! svc-admin
