//! Shared by the three servers: the two payloads and the bound of the queue.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum jobs between a front and the thread or task that answers the echo.
pub const QUEUE: usize = 4096;

/// `GET /hello`.
#[derive(Serialize, JsonSchema)]
pub struct Hello {
    pub message: &'static str,
    pub version: u32,
}

/// The response of every server.
pub const HELLO: Hello = Hello {
    message: "hello, world",
    version: 1,
};

/// `POST /echo`: parsed, passed through a bounded queue, written again. The load sends 1 KiB.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub id: u64,
    pub from: String,
    pub to: String,
    pub amount_minor: String,
    pub tags: Vec<String>,
    pub memo: String,
}

/// The address to listen on: the first argument, or any free port.
pub fn address() -> String {
    std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:0".to_owned())
}
