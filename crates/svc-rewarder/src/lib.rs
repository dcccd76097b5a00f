//! svc-rewarder
