//! svc-passport
