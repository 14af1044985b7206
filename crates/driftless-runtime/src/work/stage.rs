//! Step 7: nothing that came over the wire is believed until every byte of it was checked here.

use crate::Shared;
use crate::binding::Staged;
use bytes::Bytes;
use driftless_codec::{CodecError, Expected, FragmentRecord, FramedSection};
use driftless_device::{DeviceError, Loaded};
use driftless_layout::Fragment;
use driftless_proto::RootCause;
use driftless_types::{Digest, Fence, ReceiverId, SenderId, Version, index_of};
use std::collections::BTreeMap;

fn damaged(from: SenderId, error: &CodecError) -> RootCause {
    RootCause::Damaged(format!("trainer/{from}: {error}"))
}

/// The section of a fragment, or of some of its rows, at the front of what a sender sent: its frame is checked.
///
/// # Errors
/// [`RootCause::Damaged`] naming the sender and what is wrong.
pub(super) fn frame(
    from: SenderId,
    fragment: &Fragment,
    version: Version,
    bytes: &mut Bytes,
) -> Result<FramedSection, RootCause> {
    let (dtype, elements) = (fragment.dtype, fragment.elements());
    let expected = Expected { fragment: fragment.index, dtype, elements, version };
    FramedSection::parse(bytes, &expected).map_err(|error| damaged(from, &error))
}

/// Checks what a sender's sections say, and brings them to where the weights are.
///
/// # Errors
/// [`RootCause::Damaged`] naming the sender and what is wrong, or a failure of the device.
pub(super) fn load(
    shared: &Shared,
    from: SenderId,
    sections: Vec<FramedSection>,
) -> Result<Vec<Loaded>, RootCause> {
    shared.device.load(sections).map_err(|error| match error {
        DeviceError::Section(error) => damaged(from, &error),
        error => RootCause::Task(error.to_string()),
    })
}

/// Reads a sender's records, checks them against the plan, and adds up the payload that they announce, in bytes.
///
/// # Errors
/// [`RootCause::Damaged`] naming the sender and what is wrong.
pub(crate) fn announced_bytes(
    shared: &Shared,
    from: SenderId,
    to: ReceiverId,
    records: &[u8],
) -> Result<(Vec<FragmentRecord>, u64), RootCause> {
    let fragments = shared.plan.edge(from, to).map_or(&[][..], |edge| &edge.fragments);
    let records = FragmentRecord::decode_all(records, fragments.len()).map_err(|e| damaged(from, &e))?;
    let mut bytes = 0u64;
    for (record, fragment) in records.iter().zip(fragments) {
        record.check(fragment.dtype, fragment.elements()).map_err(|e| damaged(from, &e))?;
        bytes = bytes.saturating_add(record.bytes);
    }
    Ok((records, bytes))
}

/// Checks every section of an attempt, and sums the digests that the senders promise per local tensor.
///
/// # Errors
/// [`RootCause::Damaged`] naming the sender and what is wrong.
pub(crate) fn stage(
    shared: &Shared,
    me: ReceiverId,
    fence: Fence,
    incoming: BTreeMap<SenderId, (Vec<FragmentRecord>, Bytes)>,
) -> Result<Staged, RootCause> {
    let tensors = shared.plan.receiver(me).tensors.len();
    let mut promised = vec![Digest::ZERO; tensors];
    let mut sections = BTreeMap::new();
    for (from, (records, mut payload)) in incoming {
        let fragments = shared.plan.edge(from, me).map_or(&[][..], |edge| &edge.fragments);
        let (mut indices, mut framed) = (Vec::new(), Vec::new());
        for (index, (record, fragment)) in records.iter().zip(fragments).enumerate() {
            promised[index_of(fragment.dst_tensor.into())] += record.digest;
            if record.bytes == 0 {
                continue;
            }
            let section = frame(from, fragment, fence.version, &mut payload)?;
            record.check_section(section.header()).map_err(|e| damaged(from, &e))?;
            indices.push(index);
            framed.push(section);
        }
        if !payload.is_empty() {
            let text = format!("trainer/{from}: {} bytes follow the last section", payload.len());
            return Err(RootCause::Damaged(text));
        }
        sections.insert(from, indices.into_iter().zip(load(shared, from, framed)?).collect());
    }
    Ok(Staged { fence, sections, promised })
}
