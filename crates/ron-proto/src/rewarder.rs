//! Request and answer types of the svc-rewarder API.
