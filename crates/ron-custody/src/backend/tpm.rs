//! Keys that only one TPM can use: P-256 pairs made inside it and stored here as blobs that only it can load; and the
//! TPM's evidence for them.
//!
//! One thread owns the TPM. Between calls only the storage primary stays loaded, so that a TPM with three object slots
//! is enough and no resource manager is needed. Objects that a killed process left loaded are flushed on connecting.
//!
//! The attestation key is a restricted primary of the owner's hierarchy: the same template gives the same key as long
//! as the TPM has the same owner seed, so nothing has to be stored for it.

use ron_proto::kms::KeyBackend;
use std::str::FromStr as _;

use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::values::Alg;
use ron_service::config::read_secret_file;
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::constants::{CapabilityType, StartupType, tss};
use tss_esapi::handles::{KeyHandle, ObjectHandle};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Attest, Auth, CapabilityData, Data, Digest, EccPoint, EccScheme, HashScheme,
    KeyDerivationFunctionScheme, KeyedHashScheme, PcrSelectionListBuilder, PcrSlot, Private,
    Public, PublicBuilder, PublicEccParametersBuilder, PublicKeyedHashParameters, SensitiveData,
    Signature, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::{Marshall as _, UnMarshall as _};
use tss_esapi::tss2_esys::{TPM2B_DIGEST, TPMT_TK_HASHCHECK};
use tss_esapi::{Context, Error};

use super::session_pool::{Fault, Session, check_signature};
use super::settings::TpmSettings;
use super::{Handle, NewKey, TpmEvidence};
use crate::keys::{DeviceInput, PublicKey};

/// One password session, for commands that need one authorisation.
pub(super) const ONE: (
    Option<AuthSession>,
    Option<AuthSession>,
    Option<AuthSession>,
) = (Some(AuthSession::Password), None, None);
/// Two password sessions, for certify.
const TWO: (
    Option<AuthSession>,
    Option<AuthSession>,
    Option<AuthSession>,
) = (
    Some(AuthSession::Password),
    Some(AuthSession::Password),
    None,
);
/// Platform registers of a quote: firmware, its configuration, boot loader, secure boot.
const QUOTED: [PcrSlot; 4] = [
    PcrSlot::Slot0,
    PcrSlot::Slot1,
    PcrSlot::Slot4,
    PcrSlot::Slot7,
];
/// The TPM, owned by one thread.
pub struct TpmSession {
    pub(super) context: Context,
    primary: Option<KeyHandle>,
    /// NV index of its counter.
    pub(super) counter_index: Option<u32>,
}

/// Maps an error of the TPM: an answer about a parameter, handle or session is a refusal; everything else (no
/// connection, no free slot, a warning) drops the session, so that the next call connects again.
pub(super) fn fault(error: Error) -> Fault {
    match error {
        Error::Tss2Error(tss_esapi::constants::response_code::Tss2ResponseCode::FormatOne(_))
        | Error::WrapperError(_) => Fault::Refused(error.to_string()),
        Error::Tss2Error(_) => Fault::Gone(error.to_string()),
    }
}

impl TpmSettings {
    /// Connects to the TPM and flushes objects that an earlier process left loaded.
    pub fn connect(&self) -> Result<TpmSession, Fault> {
        let tcti = TctiNameConf::from_str(&self.tcti)
            .map_err(|_| Fault::Denied(format!("tpm.tcti `{}` is not understood", self.tcti)))?;
        let gone = |e: Error| Fault::Gone(e.to_string());
        let mut context = Context::new(tcti).map_err(gone)?;
        // Usually the firmware or the kernel has started the TPM, which then refuses this.
        let _ = context.startup(StartupType::Clear);
        if let Some(path) = &self.owner_auth {
            let auth = read_secret_file(path).map_err(Fault::Denied)?;
            let auth = Auth::try_from(auth.expose().to_vec()).map_err(fault)?;
            context
                .tr_set_auth(ObjectHandle::Owner, auth)
                .map_err(gone)?;
        }
        let mut session = TpmSession {
            context,
            primary: None,
            counter_index: self.counter_index,
        };
        session.make_room()?;
        Ok(session)
    }
}

impl Session for TpmSession {
    const KIND: KeyBackend = KeyBackend::Tpm;
    const OPS: &'static [&'static str] = &[
        "probe",
        "tpm_make",
        "tpm_sign",
        "tpm_counter",
        "tpm_seal",
        "tpm_unseal",
        "tpm_attest",
    ];

    fn probe(&mut self) -> Result<(), Fault> {
        self.context
            .execute_without_session(|c| c.get_random(8))
            .map(|_| ())
            .map_err(|e| Fault::Gone(e.to_string()))
    }

    fn make(&mut self, alg: Alg, _: [u8; 16], _: &str, _: Deadline) -> Result<NewKey, Fault> {
        only_p256(alg)?;
        let parent = self.primary()?;
        let template = signing_template(false).map_err(fault)?;
        let made = self
            .context
            .execute_with_sessions(ONE, |c| c.create(parent, template, None, None, None, None));
        let made = made.map_err(fault)?;
        let public = point(&made.out_public)
            .ok_or_else(|| Fault::Refused("the TPM made a key of another kind".into()))?;
        let handle = pack(&made.out_public, &made.out_private)?;
        check_signature(&public, |test| self.sign(alg, &handle, test))?;
        Ok(NewKey { handle, public })
    }

    fn sign(&mut self, alg: Alg, blob: &Handle, input: &DeviceInput) -> Result<Vec<u8>, Fault> {
        only_p256(alg)?;
        let key = self.load(blob)?;
        // Flushed below also after an error: a TPM may have only three slots.
        let signed = self.sign_with(key, &input.bytes);
        self.flush(key.into());
        signed
    }

    fn seal(&mut self, secret: &SecretBytes) -> Result<Vec<u8>, Fault> {
        let parent = self.primary()?;
        let template = sealed_template().map_err(fault)?;
        let data = SensitiveData::try_from(secret.expose().to_vec()).map_err(fault)?;
        let made = self.context.execute_with_sessions(ONE, |c| {
            c.create(parent, template, None, Some(data), None, None)
        });
        let made = made.map_err(fault)?;
        pack(&made.out_public, &made.out_private).map(|blob| blob.0)
    }

    fn unseal(&mut self, blob: &[u8]) -> Result<SecretBytes, Fault> {
        let object = self.load(&Handle(blob.to_vec()))?;
        let secret = self
            .context
            .execute_with_sessions(ONE, |c| c.unseal(object.into()));
        self.flush(object.into());
        let secret = secret.map_err(fault)?;
        Ok(SecretBytes::from_slice(secret.value()))
    }

    /// Certifies the key of `blob` and quotes the platform registers, both over `nonce`.
    fn attest(&mut self, blob: &Handle, nonce: [u8; 32]) -> Result<TpmEvidence, Fault> {
        let (public, _) = unpack(blob)?;
        let key = self.load(blob)?;
        // The attestation key needs its slot; the next call loads the primary again.
        if let Some(primary) = self.primary.take() {
            self.flush(primary.into());
        }
        let result = self.attest_loaded(key, nonce, &public);
        self.flush(key.into());
        result
    }

    fn counter(&mut self, advance: bool) -> Result<u64, Fault> {
        let none = || Fault::Unsupported("counting without tpm.counter_index".into());
        self.count_at(self.counter_index.ok_or_else(none)?, advance)
    }
}

impl TpmSession {
    /// Flushes objects that an earlier process left loaded. Behind a resource manager the list is empty.
    fn make_room(&mut self) -> Result<(), Fault> {
        let left = self.context.execute_without_session(|c| {
            c.get_capability(CapabilityType::Handles, tss::TPM2_TRANSIENT_FIRST, 16)
        });
        let (CapabilityData::Handles(handles), _) = left.map_err(fault)? else {
            return Ok(());
        };
        for handle in handles.iter() {
            let object = self
                .context
                .execute_without_session(|c| c.tr_from_tpm_public(*handle));
            if let Ok(object) = object {
                let _ = self.context.flush_context(object); // its owner may have flushed it meanwhile
            }
        }
        Ok(())
    }

    /// The parent of all keys of this service: a storage primary of the owner hierarchy.
    fn primary(&mut self) -> Result<KeyHandle, Fault> {
        if let Some(primary) = self.primary {
            return Ok(primary);
        }
        let template = storage_template().map_err(fault)?;
        let primary = self.make_primary(template)?;
        self.primary = Some(primary.0);
        Ok(primary.0)
    }

    fn make_primary(&mut self, template: Public) -> Result<(KeyHandle, Public), Fault> {
        let made = self.context.execute_with_sessions(ONE, |c| {
            c.create_primary(Hierarchy::Owner, template, None, None, None, None)
        });
        let made = made.map_err(fault)?;
        Ok((made.key_handle, made.out_public))
    }

    fn flush(&mut self, handle: ObjectHandle) {
        if let Err(error) = self.context.flush_context(handle) {
            tracing::warn!(event = "tpm_flush_failed", %error);
        }
    }

    fn load(&mut self, blob: &Handle) -> Result<KeyHandle, Fault> {
        let parent = self.primary()?;
        let (public, private) = unpack(blob)?;
        let loaded = self
            .context
            .execute_with_sessions(ONE, |c| c.load(parent, private, public));
        loaded.map_err(|error| match fault(error) {
            Fault::Refused(why) => Fault::Refused(format!(
                "{why}: the key was made by another TPM, or its owner was cleared"
            )),
            other => other,
        })
    }

    fn sign_with(&mut self, key: KeyHandle, hash: &[u8]) -> Result<Vec<u8>, Fault> {
        let digest = Digest::try_from(hash.to_vec()).map_err(fault)?;
        let no_ticket = TPMT_TK_HASHCHECK {
            tag: tss::TPM2_ST_HASHCHECK,
            hierarchy: tss::TPM2_RH_NULL,
            digest: TPM2B_DIGEST::default(),
        };
        let ticket = no_ticket.try_into().map_err(fault)?;
        let signature = self
            .context
            .execute_with_sessions(ONE, |c| c.sign(key, digest, ecdsa(), ticket));
        fixed(&signature.map_err(fault)?)
    }

    fn attest_loaded(
        &mut self,
        key: KeyHandle,
        nonce: [u8; 32],
        public: &Public,
    ) -> Result<TpmEvidence, Fault> {
        let template = signing_template(true).map_err(fault)?;
        let (ak, ak_public) = self.make_primary(template)?;
        let evidence = self.certify_and_quote(key, ak, nonce);
        self.flush(ak.into());
        let ((certify, certify_signature), (quote, quote_signature)) = evidence?;
        let ak_point = point(&ak_public)
            .ok_or_else(|| Fault::Refused("the TPM's attestation key is of another kind".into()))?;
        let bytes = |attest: &Attest| attest.marshall().map_err(fault);
        let signature = |signature: &Signature| signature.marshall().map_err(fault);
        Ok(TpmEvidence {
            attestation_key: ak_point.raw().to_vec(),
            key_public: public.marshall().map_err(fault)?,
            certify: bytes(&certify)?,
            certify_signature: signature(&certify_signature)?,
            quote: bytes(&quote)?,
            quote_signature: signature(&quote_signature)?,
        })
    }

    #[allow(clippy::type_complexity)]
    fn certify_and_quote(
        &mut self,
        key: KeyHandle,
        ak: KeyHandle,
        nonce: [u8; 32],
    ) -> Result<((Attest, Signature), (Attest, Signature)), Fault> {
        let data = || Data::try_from(nonce.to_vec()).map_err(fault);
        let (for_certify, for_quote) = (data()?, data()?);
        let certify = self
            .context
            .execute_with_sessions(TWO, |c| c.certify(key.into(), ak, for_certify, ecdsa()));
        let registers = PcrSelectionListBuilder::new()
            .with_selection(HashingAlgorithm::Sha256, &QUOTED)
            .build()
            .map_err(fault)?;
        let quote = self
            .context
            .execute_with_sessions(ONE, |c| c.quote(ak, for_quote, ecdsa(), registers));
        Ok((certify.map_err(fault)?, quote.map_err(fault)?))
    }
}

fn only_p256(alg: Alg) -> Result<(), Fault> {
    if alg == Alg::EcdsaP256 {
        return Ok(());
    }
    Err(Fault::Unsupported(format!("{alg} in a TPM")))
}

fn ecdsa() -> SignatureScheme {
    SignatureScheme::EcDsa {
        hash_scheme: HashScheme::new(HashingAlgorithm::Sha256),
    }
}

/// The template of the storage primary.
fn storage_template() -> tss_esapi::Result<Public> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
        .with_user_with_auth(true)
        .with_no_da(true)
        .with_restricted(true)
        .with_decrypt(true)
        .build()?;
    let parameters = PublicEccParametersBuilder::new_restricted_decryption_key(
        SymmetricDefinitionObject::AES_128_CFB,
        EccCurve::NistP256,
    );
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_ecc_parameters(parameters.build()?)
        .with_ecc_unique_identifier(EccPoint::default())
        .build()
}

/// The template of signing keys. The attestation key is `restricted`: it signs only data that the TPM itself has
/// made.
fn signing_template(restricted: bool) -> tss_esapi::Result<Public> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
        .with_user_with_auth(true)
        .with_no_da(true)
        .with_restricted(restricted)
        .with_sign_encrypt(true)
        .build()?;
    let scheme = EccScheme::EcDsa(HashScheme::new(HashingAlgorithm::Sha256));
    let parameters = PublicEccParametersBuilder::new()
        .with_symmetric(SymmetricDefinitionObject::Null)
        .with_ecc_scheme(scheme)
        .with_curve(EccCurve::NistP256)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .with_is_signing_key(true)
        .with_is_decryption_key(false)
        .with_restricted(restricted);
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_ecc_parameters(parameters.build()?)
        .with_ecc_unique_identifier(EccPoint::default())
        .build()
}

/// The template of a sealed secret.
fn sealed_template() -> tss_esapi::Result<Public> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_no_da(true)
        .with_user_with_auth(true)
        .build()?;
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::KeyedHash)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_keyed_hash_parameters(PublicKeyedHashParameters::new(KeyedHashScheme::Null))
        .with_keyed_hash_unique_identifier(Digest::default())
        .build()
}

/// Blob: length of the public area (u16, big-endian), the public area, the wrapped private area.
fn pack(public: &Public, private: &Private) -> Result<Handle, Fault> {
    let public = public.marshall().map_err(fault)?;
    let length = u16::try_from(public.len())
        .map_err(|_| Fault::Refused("the TPM's public area is too long".into()))?;
    let mut blob = length.to_be_bytes().to_vec();
    blob.extend_from_slice(&public);
    blob.extend_from_slice(private.value());
    Ok(Handle(blob))
}

fn unpack(blob: &Handle) -> Result<(Public, Private), Fault> {
    let bad = || Fault::Refused("the key's blob is damaged".into());
    let (length, rest) = blob.0.split_first_chunk::<2>().ok_or_else(bad)?;
    let at = usize::from(u16::from_be_bytes(*length));
    let (public, private) = rest.split_at_checked(at).ok_or_else(bad)?;
    let public = Public::unmarshall(public).map_err(fault)?;
    let private = Private::try_from(private.to_vec()).map_err(fault)?;
    Ok((public, private))
}

/// Pads a number to 32 bytes: the TPM omits leading zeros.
fn padded(part: &[u8]) -> Option<[u8; 32]> {
    let mut out = [0_u8; 32];
    let at = out.len().checked_sub(part.len())?;
    out[at..].copy_from_slice(part);
    Some(out)
}

fn point(public: &Public) -> Option<PublicKey> {
    let Public::Ecc { unique, .. } = public else {
        return None;
    };
    let (x, y) = (padded(unique.x().value())?, padded(unique.y().value())?);
    PublicKey::from_raw(Alg::EcdsaP256, &[&[4][..], &x, &y].concat())
}

fn fixed(signature: &Signature) -> Result<Vec<u8>, Fault> {
    let Signature::EcDsa(ecc) = signature else {
        return Err(Fault::Refused("the TPM signed in another way".into()));
    };
    let parts = (
        padded(ecc.signature_r().value()),
        padded(ecc.signature_s().value()),
    );
    match parts {
        (Some(r), Some(s)) => Ok([r, s].concat()),
        _ => Err(Fault::Refused("the TPM's signature is too long".into())),
    }
}
