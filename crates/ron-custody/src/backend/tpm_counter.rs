//! A monotonic counter in the TPM's non-volatile memory: restoring the disk does not reset it.

use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::constants::NvIndexType;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, TpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{NvAuth, Provision};
use tss_esapi::structures::NvPublicBuilder;

use super::session_pool::Fault;
use super::tpm::{ONE, TpmSession, fault};

/// Bytes of a counter.
const COUNTER_BYTES: u16 = 8;

impl TpmSession {
    /// Reads the counter at this index, after incrementing it if `advance` is set. A missing counter is created and
    /// incremented once, because a TPM counter cannot be read before its first increment.
    pub(super) fn count_at(&mut self, index: u32, advance: bool) -> Result<u64, Fault> {
        let place = NvIndexTpmHandle::new(index).map_err(fault)?;
        let known = self
            .context
            .execute_without_session(|c| c.tr_from_tpm_public(TpmHandle::NvIndex(place)));
        let (handle, new) = match known {
            Ok(handle) => (NvIndexHandle::from(handle), false),
            Err(_) => (self.define_counter(place)?, true),
        };
        let counted = self.count(handle, advance || new);
        let mut object = handle.into();
        if let Err(error) = self.context.tr_close(&mut object) {
            tracing::warn!(event = "tpm_close_failed", %error);
        }
        counted
    }

    fn count(&mut self, handle: NvIndexHandle, advance: bool) -> Result<u64, Fault> {
        if advance {
            let step = |c: &mut tss_esapi::Context| c.nv_increment(NvAuth::Owner, handle);
            self.context
                .execute_with_sessions(ONE, step)
                .map_err(fault)?;
        }
        let read = |c: &mut tss_esapi::Context| c.nv_read(NvAuth::Owner, handle, COUNTER_BYTES, 0);
        let value = self.context.execute_with_sessions(ONE, read);
        let value = value.map_err(fault)?;
        let bytes = value.value().try_into();
        bytes
            .map(u64::from_be_bytes)
            .map_err(|_| Fault::Refused("the NV index is not a counter".into()))
    }

    fn define_counter(&mut self, place: NvIndexTpmHandle) -> Result<NvIndexHandle, Fault> {
        let attributes = NvIndexAttributesBuilder::new()
            .with_owner_write(true)
            .with_owner_read(true)
            .with_no_da(true)
            .with_nv_index_type(NvIndexType::Counter)
            .build()
            .map_err(fault)?;
        let public = NvPublicBuilder::new()
            .with_nv_index(place)
            .with_index_name_algorithm(HashingAlgorithm::Sha256)
            .with_index_attributes(attributes)
            .with_data_area_size(usize::from(COUNTER_BYTES))
            .build()
            .map_err(fault)?;
        let define = |c: &mut tss_esapi::Context| c.nv_define_space(Provision::Owner, None, public);
        self.context
            .execute_with_sessions(ONE, define)
            .map_err(fault)
    }
}
