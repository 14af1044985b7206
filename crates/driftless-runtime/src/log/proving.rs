//! The weights that a reader finds in memory when its process starts.
//!
//! What it kept says which version they are; a disk, or whoever filled the memory, may say otherwise. So they are
//! compared with the digests of that version's entry, once, before they are served (CM-14). Weights that are not proven
//! are of no version, and the reader begins at an anchor with its ratchet as it was.

use super::io::{LogIoError, fault, jittered};
use super::reading::FollowBinding;
use crate::Shared;
use driftless_proto::log::{Cursor, Fault, Goal, Memory, Published, Reading, Trouble};
use tracing::error;

/// What was kept, with `held` only if the weights are that.
pub(super) async fn proven(shared: &Shared, binding: &FollowBinding, memory: Memory) -> Memory {
    let held = memory.cursor.and_then(|cursor| cursor.held.map(|held| (cursor, held)));
    let proven = match held {
        // A mix is proven when the entry that it is a mix with was written again.
        Some((cursor, held)) if memory.dirty.is_none() && !binding.is_proven() => {
            if is_held(shared, binding, &held).await {
                memory
            } else {
                let version = held.version;
                error!(replica = %binding.replica, %version, "alarm: the weights are not proven to be what was kept");
                binding.hold().await.tear();
                Memory { cursor: Some(Cursor { held: None, ..cursor }), dirty: None }
            }
        }
        _ => memory,
    };
    binding.set_proven();
    proven
}

/// Whether the weights have the digests of this entry. What is gone from the store proves nothing.
async fn is_held(shared: &Shared, binding: &FollowBinding, held: &Published) -> bool {
    let patience = binding.options.patience;
    for failures in 1.. {
        let fault = match compare(shared, binding, held).await {
            Ok(is_held) => return is_held,
            Err(fault) => fault,
        };
        if failures >= patience.tries {
            if binding.options.goal == Goal::Once {
                return false;
            }
            binding.tell(|state| state.trouble = Some(Trouble::Store(fault)));
        }
        tokio::time::sleep(jittered(patience.pause(failures))).await;
    }
    false
}

async fn compare(shared: &Shared, binding: &FollowBinding, held: &Published) -> Result<bool, Fault> {
    let stored = match binding.io.read(held.seq).await {
        Reading::Found(stored) => stored,
        Reading::Failed(fault) => return Err(fault),
        Reading::Absent | Reading::Invalid => return Ok(false),
    };
    let Some(publication) = stored.entry.kind.publication() else { return Ok(false) };
    if stored.published() != Some(*held) {
        return Ok(false);
    }
    let params = shared.plan.params().len();
    match binding.io.digests(stored.entry.epoch, publication, params).await {
        Ok(stated) => Ok(binding.hold().await.differing(binding, &stated).is_empty()),
        Err(LogIoError::Store(error)) if !error.is_absence() && !error.is_damage() => Err(fault(&error)),
        Err(_) => Ok(false),
    }
}
