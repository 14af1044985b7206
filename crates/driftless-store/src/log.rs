//! The log of a stream: one create-only object per place.

use crate::error::StoreError;
use crate::key::SEQ_MAX;
use crate::stream::{Discovery, Shared, Stream, length};
use bytes::Bytes;
use driftless_codec::entry::MAX_ENTRY_BYTES;
use driftless_types::Seq;
use object_store::PutMode;

/// The most bytes of an entry, signature included.
pub const ENTRY_BYTES_MAX: u64 = MAX_ENTRY_BYTES as u64;
/// The most bytes of the hint.
const HEAD_BYTES_MAX: u64 = 32;
/// Places that are asked for one by one behind the last that a listing shows.
const UNLISTED_MAX: u64 = 64;

impl Stream {
    /// Creates the entry at a place, once: this request is never repeated by itself.
    ///
    /// After *any* error the place has to be read back before anything else is tried, `AlreadyExists` included: the
    /// bytes may have got there.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] if something is at that place; [`StoreError::TooLarge`] above the cap; whatever
    /// a put meets.
    pub async fn create_entry(&self, seq: Seq, object: Bytes) -> Result<(), StoreError> {
        let key = self.shared.keys.entry(seq);
        let found = length(&object);
        if found > ENTRY_BYTES_MAX {
            return Err(StoreError::TooLarge { key: key.to_string(), found, limit: ENTRY_BYTES_MAX });
        }
        // LG-2: only if absent, so that what a place has never changes.
        self.put(&key, object, PutMode::Create).await
    }

    /// Reads the entry at a place, of at most `cap_bytes`; repeated while errors may pass. The folder is listed
    /// before a place is said to be empty, because some file systems remember for a while that a name was not there.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if nothing is there and no listing shows it; [`StoreError::NotVisible`] if one does;
    /// [`StoreError::TooLarge`] above the cap; whatever a get meets.
    pub async fn read_entry(&self, seq: Seq, cap_bytes: u64) -> Result<Bytes, StoreError> {
        self.shared.caller.repeated(|| self.read_entry_once(seq, cap_bytes)).await
    }

    async fn read_entry_once(&self, seq: Seq, cap_bytes: u64) -> Result<Bytes, StoreError> {
        let Shared { keys, caller, local, .. } = &*self.shared;
        let key = keys.entry(seq);
        let object = match self.read_bounded(&key, cap_bytes).await {
            Err(StoreError::Missing { .. }) if self.is_listed(seq).await? => {
                return Err(StoreError::NotVisible { key: key.to_string() });
            }
            read => read?,
        };
        if let Some(local) = local {
            // LG-3: nobody builds on an entry that a crash of this machine could still take back.
            local.sync_above(&key, caller).await?;
        }
        Ok(object)
    }

    async fn is_listed(&self, seq: Seq) -> Result<bool, StoreError> {
        if self.shared.discovery == Discovery::ByProbing {
            return Ok(false);
        }
        let listed = self.list_entries(seq).await?;
        Ok(listed.first() == Some(&seq))
    }

    /// The places from `from` on that a listing shows, in order. A listing may be stale; names that are no places
    /// are left out.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] above the bound; whatever a listing meets, such as of a plain web server.
    pub async fn list_entries(&self, from: Seq) -> Result<Vec<Seq>, StoreError> {
        let keys = &self.shared.keys;
        let after = from.0.checked_sub(1).map(|before| keys.entry(Seq(before)));
        let is_wanted = |seq: &Seq| *seq >= from;
        let parse = |object: &object_store::ObjectMeta| keys.parse_entry(&object.location).filter(is_wanted);
        let mut places = self.list(&keys.log(), after.as_ref(), parse).await?;
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    /// The last place of the unbroken run that begins at `from`, or `None` if nothing is at `from`. The hint shortens
    /// the search where it names an entry, and names behind a gap do not count. A place to begin from, and no more:
    /// the log may be longer by what a stale listing does not show, and in a hostile bucket any name can be there,
    /// so that only the chain of digests and signatures says what belongs to the log.
    ///
    /// # Errors
    /// Whatever a listing or a get meets.
    pub async fn tail(&self, from: Seq) -> Result<Option<Seq>, StoreError> {
        let hinted = self.read_head().await?.filter(|&head| head > from);
        // Entries are created in order, so one that is there has all before it; and the hint may be anything.
        let start = match hinted {
            Some(head) if self.has_entry(head).await? => Some(head),
            _ => None,
        };
        if self.shared.discovery == Discovery::ByProbing {
            return self.probed_tail(start.unwrap_or(from)).await;
        }
        let listed = self.list_entries(start.unwrap_or(from)).await?;
        let mut last = start;
        for seq in listed {
            let next = last.map_or(from, Seq::next);
            match seq.cmp(&next) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => last = Some(seq),
                std::cmp::Ordering::Greater => break,
            }
        }
        self.beyond_listing(last, from).await
    }

    /// A listing may be older than the newest entries: asks for a few places behind it.
    async fn beyond_listing(&self, listed: Option<Seq>, from: Seq) -> Result<Option<Seq>, StoreError> {
        let mut last = listed;
        for _ in 0..UNLISTED_MAX {
            let next = last.map_or(from, Seq::next);
            if !self.has_entry(next).await? {
                break;
            }
            last = Some(next);
        }
        Ok(last)
    }

    /// The last place by asking for single ones: doubles the step until a place is empty, then halves the span.
    async fn probed_tail(&self, from: Seq) -> Result<Option<Seq>, StoreError> {
        if !self.has_entry(from).await? {
            return Ok(None);
        }
        let (mut present, mut step) = (from.0, 1_u64);
        let mut absent = loop {
            let Some(next) = present.checked_add(step) else { return Ok(Some(Seq(present))) };
            if !self.has_entry(Seq(next)).await? {
                break next;
            }
            (present, step) = (next, step.saturating_mul(2));
        };
        while absent - present > 1 {
            let middle = present + (absent - present) / 2;
            if self.has_entry(Seq(middle)).await? {
                present = middle;
            } else {
                absent = middle;
            }
        }
        Ok(Some(Seq(present)))
    }

    async fn has_entry(&self, seq: Seq) -> Result<bool, StoreError> {
        let stored_bytes = self.stored_bytes(&self.shared.keys.entry(seq)).await?;
        Ok(stored_bytes.is_some())
    }

    /// Leaves the hint that the log reaches this place. Overwritten at will, stale at times, and never believed.
    ///
    /// # Errors
    /// Whatever a put meets.
    pub async fn write_head(&self, seq: Seq) -> Result<(), StoreError> {
        let Shared { keys, caller, .. } = &*self.shared;
        let (key, text) = (keys.head(), Bytes::from(format!("{}\n", seq.0)));
        caller.repeated(|| self.put(&key, text.clone(), PutMode::Overwrite)).await
    }

    /// The hint, or `None` if there is none or it is no number.
    ///
    /// # Errors
    /// Whatever a get meets.
    pub async fn read_head(&self) -> Result<Option<Seq>, StoreError> {
        let Shared { keys, caller, .. } = &*self.shared;
        let key = keys.head();
        match caller.repeated(|| self.read_bounded(&key, HEAD_BYTES_MAX)).await {
            Ok(text) => Ok(parse_head(&text)),
            Err(StoreError::Missing { .. } | StoreError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn parse_head(text: &[u8]) -> Option<Seq> {
    let number = str::from_utf8(text).ok()?.trim_end().parse().ok()?;
    (number <= SEQ_MAX).then_some(Seq(number))
}
