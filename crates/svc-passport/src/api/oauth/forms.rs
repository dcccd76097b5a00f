//! The forms of the OAuth endpoints as the API document describes them; [`super::Fields`] reads them.

#![allow(dead_code)] // only their shapes matter

use schemars::JsonSchema;

/// How a client proves itself inside a form; with HTTP Basic or a certificate it sends less of this, or nothing.
#[derive(JsonSchema)]
pub struct ClientFields {
    /// Who asks.
    client_id: Option<String>,
    /// Its secret.
    client_secret: Option<String>,
    /// The jwt-bearer type of RFC 7523.
    client_assertion_type: Option<String>,
    /// A JWT that the client has signed.
    client_assertion: Option<String>,
}

/// `POST /oauth2/token`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TokenForm {
    /// `client_credentials`, or the token-exchange one of RFC 8693.
    grant_type: GrantType,
    /// Scopes separated by spaces; all that are allowed when absent.
    scope: Option<String>,
    /// The service that the token is for; may be absent when the policy names just one.
    audience: Option<String>,
    /// Refused: a service is named by its audience.
    resource: Option<String>,
    /// Lifetime in seconds.
    ttl_s: Option<u64>,
    /// Caveats as `key=value`; one field for each.
    caveat: Option<Vec<String>>,
    /// Caveats in the form of RFC 9396: a JSON array of objects of type `ron`.
    authorization_details: Option<String>,
    /// The token to exchange.
    subject_token: Option<String>,
    /// The access token type of RFC 8693.
    subject_token_type: Option<String>,
    /// Refused: the client that asks is the actor.
    actor_token: Option<String>,
    /// Refused likewise.
    actor_token_type: Option<String>,
    /// The access token type of RFC 8693.
    requested_token_type: Option<String>,
    #[schemars(flatten)]
    client: ClientFields,
}

/// What a client may ask with.
#[derive(JsonSchema)]
enum GrantType {
    #[schemars(rename = "client_credentials")]
    ClientCredentials,
    #[schemars(rename = "urn:ietf:params:oauth:grant-type:token-exchange")]
    TokenExchange,
}

/// `POST /oauth2/introspect` and `/oauth2/revoke`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct AboutToken {
    /// The token that it is about.
    token: String,
    /// Not looked at: there is one kind of token.
    token_type_hint: Option<String>,
    #[schemars(flatten)]
    client: ClientFields,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{CLIENT_FIELDS, TOKEN_FIELDS, token};
    use super::*;

    fn documented<T: JsonSchema>() -> BTreeSet<String> {
        let schema = schemars::schema_for!(T).to_value();
        let names = schema["properties"].as_object().expect("an object");
        names.keys().cloned().collect()
    }

    #[test]
    fn the_document_names_the_fields_that_are_read() {
        let read = |own: &[&str]| -> BTreeSet<String> {
            let all = own.iter().chain(&CLIENT_FIELDS);
            all.map(|name| (*name).to_owned()).collect()
        };
        assert_eq!(documented::<TokenForm>(), read(&token::KNOWN));
        assert_eq!(documented::<AboutToken>(), read(&TOKEN_FIELDS));
    }
}
