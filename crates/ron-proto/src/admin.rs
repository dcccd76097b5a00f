//! Request and answer types of the svc-admin API.
