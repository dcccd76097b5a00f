//! Return values of the C interface, and which of them stands for which failure of a call to the service.

use cryptoki_sys::{
    CK_RV, CKR_DATA_LEN_RANGE, CKR_DEVICE_ERROR, CKR_DEVICE_MEMORY, CKR_DEVICE_REMOVED,
    CKR_FUNCTION_FAILED, CKR_FUNCTION_REJECTED, CKR_KEY_FUNCTION_NOT_PERMITTED,
    CKR_KEY_HANDLE_INVALID, CKR_USER_NOT_LOGGED_IN,
};
use ron_client::ClientError;

/// A return value other than `CKR_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rv(pub CK_RV);

/// What the service was asked for; a refusal means different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Signature,
    /// Keys of a token, or random bytes.
    Other,
}

impl Rv {
    /// The table of `docs/pkcs11-module.md`.
    pub fn of(error: &ClientError, asked: Asked) -> Self {
        let of_key = asked == Asked::Signature;
        Self(match error {
            ClientError::NotSent { .. } => CKR_DEVICE_REMOVED,
            ClientError::Unknown { .. } => CKR_DEVICE_ERROR,
            ClientError::Refused { status, .. } => match status {
                401 => CKR_USER_NOT_LOGGED_IN,
                403 if of_key => CKR_KEY_FUNCTION_NOT_PERMITTED,
                403 => CKR_FUNCTION_REJECTED,
                404 | 409 | 410 if of_key => CKR_KEY_HANDLE_INVALID,
                413 => CKR_DATA_LEN_RANGE,
                429 => CKR_DEVICE_MEMORY,
                500.. => CKR_DEVICE_ERROR,
                _ => CKR_FUNCTION_FAILED,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_http::Cause;
    use ron_proto::ProblemBody;

    fn refused(status: u16) -> ClientError {
        let problem = ProblemBody {
            kind: String::new(),
            title: String::new(),
            status,
            detail: String::new(),
            code: String::new(),
            retryable: false,
            request_id: String::new(),
            details: None,
        };
        ClientError::Refused {
            status,
            problem: Box::new(problem),
            retry_after_s: None,
        }
    }

    #[test]
    fn each_failure_has_its_value() {
        let check = |error: &ClientError, signing: CK_RV, other: CK_RV| {
            assert_eq!(Rv::of(error, Asked::Signature), Rv(signing), "{error}");
            assert_eq!(Rv::of(error, Asked::Other), Rv(other), "{error}");
        };
        let detail = String::new;
        let gone = ClientError::NotSent { detail: detail() };
        check(&gone, CKR_DEVICE_REMOVED, CKR_DEVICE_REMOVED);
        let open = ClientError::Unknown {
            cause: Cause::Timeout,
            detail: detail(),
        };
        check(&open, CKR_DEVICE_ERROR, CKR_DEVICE_ERROR);
        let rows = [
            (400, CKR_FUNCTION_FAILED, CKR_FUNCTION_FAILED),
            (401, CKR_USER_NOT_LOGGED_IN, CKR_USER_NOT_LOGGED_IN),
            (403, CKR_KEY_FUNCTION_NOT_PERMITTED, CKR_FUNCTION_REJECTED),
            (404, CKR_KEY_HANDLE_INVALID, CKR_FUNCTION_FAILED),
            (409, CKR_KEY_HANDLE_INVALID, CKR_FUNCTION_FAILED),
            (413, CKR_DATA_LEN_RANGE, CKR_DATA_LEN_RANGE),
            (429, CKR_DEVICE_MEMORY, CKR_DEVICE_MEMORY),
            (503, CKR_DEVICE_ERROR, CKR_DEVICE_ERROR),
        ];
        for (status, signing, other) in rows {
            check(&refused(status), signing, other);
        }
    }
}
