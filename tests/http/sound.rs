//! Sound requests: two public routes of the passport service that answer them 200.

pub const POST: &str = "/v1/passport/verify";
/// A route that is only read, and that no other caller uses meanwhile.
pub const GET: &str = "/.well-known/oauth-authorization-server";
/// A body that is answered 200.
pub const BODY: &str = r#"{"token":"x"}"#;

/// A GET with an id that its response repeats.
pub fn get(id: &str) -> Vec<u8> {
    format!("GET {GET} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n\r\n").into_bytes()
}

/// A POST of [`BODY`].
pub fn post() -> Vec<u8> {
    let length = BODY.len();
    let head = format!("POST {POST} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json");
    format!("{head}\r\nContent-Length: {length}\r\n\r\n{BODY}").into_bytes()
}
