//! What outlives a receiver's actor: the live weights, the undo log and the phase.

use super::check::Breach;
use super::transport::Part;
use driftless_proto::{RootCause, Weights};
use driftless_types::{Fence, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Of each sender for each receiver, when everything is taken in place.
pub(super) const WINDOWS: u32 = 3;

/// The live weights of a receiver: the part that each sender owns, and the version of its bits.
pub(super) type Content = BTreeMap<SenderId, Version>;

#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) content: Content,
    /// While a scatter or an undo runs the content is neither old nor new.
    pub(super) writing: Option<Fence>,
    /// The old content, kept from the first write of an attempt until its decision.
    pub(super) undo: Option<(Fence, Content)>,
    pub(super) applied: Option<Fence>,
    pub(super) committed: Option<Fence>,
    pub(super) version: Version,
    pub(super) weights: Weights,
    /// Tensors whose bits are wrong until they are sent whole.
    pub(super) corrupt: BTreeSet<u32>,
    repaired: BTreeSet<u32>,
}

impl Binding {
    pub(super) fn new(senders: impl IntoIterator<Item = SenderId>) -> Self {
        Self {
            content: senders.into_iter().map(|sender| (sender, Version(0))).collect(),
            writing: None,
            undo: None,
            applied: None,
            committed: None,
            version: Version(0),
            weights: Weights::Whole,
            corrupt: BTreeSet::new(),
            repaired: BTreeSet::new(),
        }
    }

    pub(super) fn begin_scatter(&mut self, fence: Fence) {
        self.undo = Some((fence, self.content.clone()));
        self.writing = Some(fence);
    }

    /// The scatter has written everything; the digests are compared.
    ///
    /// # Errors
    /// CM-6 if a part does not cover everything that changed since this receiver's base.
    pub(super) fn end_scatter(
        &mut self,
        fence: Fence,
        parts: &BTreeMap<SenderId, Part>,
    ) -> Result<Result<(), RootCause>, Breach> {
        self.writing = None;
        self.repaired.clear();
        for (sender, content) in &mut self.content {
            let Some(part) = parts.get(sender) else {
                return Err(Breach::new("CM-4", format!("nothing from trainer/{sender} for {fence}")));
            };
            if part.base > *content {
                let what = format!("{fence} assumes base {} where {content} is live", part.base);
                return Err(Breach::new("CM-6", what));
            }
            self.repaired.extend(&part.repair);
            *content = part.version;
        }
        let wrong: BTreeSet<u32> = self.corrupt.difference(&self.repaired).copied().collect();
        if wrong.is_empty() || self.content.is_empty() {
            self.applied = Some(fence);
            return Ok(Ok(()));
        }
        Ok(Err(RootCause::DigestMismatch { tensors: wrong }))
    }

    /// A window of a sender is written in place; the last one makes its part whole.
    pub(super) fn write_window(&mut self, from: SenderId, version: Version, index: u32) {
        self.weights = Weights::Torn;
        let is_last = index + 1 == WINDOWS;
        self.content.insert(from, if is_last { version } else { Version(u64::MAX) });
    }

    /// Everything was written in place; the digests are compared.
    ///
    /// # Errors
    /// CM-6 if some part is not that of the version.
    pub(super) fn prove(&mut self, fence: Fence) -> Result<(), Breach> {
        if self.content.values().any(|&part| part != fence.version) {
            return Err(Breach::new("CM-6", format!("{fence} in place left {:?}", self.content)));
        }
        self.corrupt.clear();
        self.applied = Some(fence);
        Ok(())
    }

    /// From the first restored bit on, the attempt counts as applied no more.
    pub(super) fn begin_undo(&mut self, fence: Fence) {
        self.applied = None;
        self.writing = Some(fence);
    }

    pub(super) fn end_undo(&mut self) {
        self.writing = None;
        self.applied = None;
        if let Some((_, old)) = self.undo.take() {
            self.content = old;
        }
    }

    pub(super) fn seal(&mut self, fence: Fence) {
        self.undo = None;
        self.applied = None;
        self.committed = Some(fence);
        self.weights = Weights::Whole;
        self.version = fence.version;
        self.corrupt = self.corrupt.difference(&self.repaired).copied().collect();
    }

    /// What a restart finds: an interrupted write is taken back before the receiver says a word.
    pub(super) fn recover(&mut self) -> Option<Fence> {
        if self.applied.is_some() {
            return None;
        }
        let interrupted = self.undo.as_ref().map(|(fence, _)| *fence);
        self.end_undo();
        interrupted
    }
}
