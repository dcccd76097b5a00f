//! Request and answer types of the svc-passport API.
