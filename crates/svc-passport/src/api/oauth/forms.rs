//! The forms of the OAuth endpoints, for the API document; [`super::Fields`] parses requests.

#![allow(dead_code)] // only their schemas are used

use schemars::JsonSchema;

/// Client authentication inside a form; a client with HTTP Basic or a certificate sends fewer of these fields, or none.
#[derive(JsonSchema)]
pub struct ClientFields {
    /// The client's id in the issuer's configuration.
    client_id: Option<String>,
    /// The client's secret, `ron_cs_<client_id>_<43 characters>`; not with HTTP Basic.
    client_secret: Option<String>,
    /// `urn:ietf:params:oauth:client-assertion-type:jwt-bearer` (RFC 7523), with `client_assertion`.
    client_assertion_type: Option<String>,
    /// A JWT signed with the client's own key; used once, valid for ten minutes at most.
    client_assertion: Option<String>,
}

/// The form of `POST /oauth2/token`. Other fields are ignored, and a field without a value counts as absent.
#[derive(JsonSchema)]
pub struct TokenForm {
    /// `client_credentials`, the jwt-bearer one of RFC 7523, or the token-exchange one of RFC 8693.
    grant_type: GrantType,
    /// Scopes separated by spaces; all allowed scopes when absent.
    scope: Option<String>,
    /// The service that the token is for; may be absent when the policy allows the client only one.
    audience: Option<String>,
    /// The same, if the audience is an absolute URL (RFC 8707); `audience`, if given too, must be equal.
    resource: Option<String>,
    /// Lifetime of the token in seconds, at least 1; the issuer's default when absent.
    ttl_s: Option<u64>,
    /// Caveats as `key=value`, one field per caveat.
    caveat: Option<Vec<String>>,
    /// Caveats in the form of RFC 9396: a JSON array of objects of type `ron`.
    authorization_details: Option<String>,
    /// With jwt-bearer: a token of an issuer that the policy trusts; it stands for the client that the policy maps it to.
    assertion: Option<String>,
    /// The token to exchange.
    subject_token: Option<String>,
    /// The access token type of RFC 8693 for a token of this issuer; `urn:ietf:params:oauth:token-type:jwt` or `id_token`
    /// for one of another issuer.
    subject_token_type: Option<String>,
    /// Refused: the authenticated client is the actor.
    actor_token: Option<String>,
    /// Refused, like `actor_token`.
    actor_token_type: Option<String>,
    /// The access token type of RFC 8693.
    requested_token_type: Option<String>,
    #[schemars(flatten)]
    client: ClientFields,
}

/// The supported grant types.
#[derive(JsonSchema)]
enum GrantType {
    #[schemars(rename = "client_credentials")]
    ClientCredentials,
    #[schemars(rename = "urn:ietf:params:oauth:grant-type:jwt-bearer")]
    JwtBearer,
    #[schemars(rename = "urn:ietf:params:oauth:grant-type:token-exchange")]
    TokenExchange,
}

/// The form of `POST /oauth2/introspect` and `/oauth2/revoke`. Other fields are ignored.
#[derive(JsonSchema)]
pub struct AboutToken {
    /// The token to introspect or to revoke.
    token: String,
    /// Ignored: there is one kind of token.
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
