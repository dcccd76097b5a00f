//! `X-Vault-Token`: the same credentials as everywhere, in the header that Vault's clients use.

use std::sync::Arc;

use ron_http::{Authorizer, Headers, Need, Principal, RequestHead};
use ron_proto::problem::Problem;

/// An authorizer that also takes the credential from `X-Vault-Token`, on Vault's routes only and
/// only where there is no `Authorization`.
pub struct VaultTokens(pub Arc<dyn Authorizer>);

impl Authorizer for VaultTokens {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        if !head.route.starts_with("/v1/transit/") && !head.route.starts_with("/v1/auth/") {
            return self.0.authorize(head, need);
        }
        // Vault says 403 to a wrong token, and its clients expect that.
        self.vault(head, need)
            .map_err(|problem| match problem.status {
                401 => Problem::forbidden(problem.detail),
                _ => problem,
            })
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
