//! Ids and signatures of messages, as Standard Webhooks defines them (symmetric, version `v1`).

use ron_crypto::hash::{hmac_sha256, sha256};
use ron_crypto::secret::SecretBytes;
use ron_proto::b64;
use ron_proto::ledger::Event;

/// The id of a message: the same for each attempt, another one for each endpoint and entry. The
/// entry's hash is in it because a restored ledger uses a sequence again.
pub fn message_id(endpoint: &str, event: &Event) -> String {
    let receipt = event.answer.receipt();
    let entry = receipt.map_or([0; 32], |receipt| receipt.receipt_hash.0);
    let named = [endpoint.as_bytes(), &[0], &event.seq.to_be_bytes(), &entry];
    format!("msg_{}", b64::url(&sha256(&named.concat())[..18]))
}

/// The value of `webhook-signature`: one signature per secret, so that a secret can be changed while
/// the receiver still has the old one.
pub fn signatures(secrets: &[SecretBytes], id: &str, now_s: &str, body: &[u8]) -> String {
    let signed = [id.as_bytes(), b".", now_s.as_bytes(), b".", body].concat();
    let of = |secret: &SecretBytes| {
        let tag = hmac_sha256(secret.expose(), &signed);
        format!("v1,{}", b64::std(&tag))
    };
    secrets.iter().map(of).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_specification() {
        let secret = b64::from_std("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let secrets = [SecretBytes::new(secret)];
        let body = br#"{"test": 2432232314}"#;
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        assert_eq!(
            signatures(&secrets, id, "1614265330", body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }
}
