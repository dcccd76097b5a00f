//! Request and answer types of the svc-wallet API.
