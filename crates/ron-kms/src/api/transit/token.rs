//! `X-Vault-Token`: the service's usual credentials, in the header that Vault's clients use.

use std::sync::Arc;

use ron_http::{Authorizer, Headers, Need, Principal, RequestHead};
use ron_proto::problem::Problem;

/// An authorizer that also accepts the credential in `X-Vault-Token`: only on Vault's routes, and only without an
/// `Authorization` header.
pub struct VaultTokens(pub Arc<dyn Authorizer>);

impl Authorizer for VaultTokens {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        if !head.route.starts_with("/v1/transit/") && !head.route.starts_with("/v1/auth/") {
            return self.0.authorize(head, need);
        }
        self.vault(head, need)
    }

    fn served_at(&self, bases: &[String]) {
        self.0.served_at(bases);
    }
}

impl VaultTokens {
    fn vault(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        let alone =
            head.headers.count("x-vault-token") == 1 && !head.headers.contains("authorization");
        let token = head.header("x-vault-token").filter(|_| alone);
        let Some(token) = token.filter(|token| !token.contains(char::is_whitespace)) else {
            return self.0.authorize(head, need);
        };
        let bearer = format!("Bearer {token}");
        let mut pairs: Vec<(&str, &str)> = head.headers.iter().collect();
        pairs.push(("authorization", &bearer));
        let head = RequestHead {
            headers: Headers::from_pairs(&pairs),
            ..head.clone()
        };
        self.0.authorize(&head, need)
    }
}
