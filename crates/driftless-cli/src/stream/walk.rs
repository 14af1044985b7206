//! A stream's entries in order, from genesis on, and what each means there.

use driftless::log::{Breach, Chain, Effect, Fault, LogIo, Reading, Stored};
use driftless_types::Seq;

/// Why there is no going on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    /// Its bytes are not what they should be.
    #[error("entry {0} does not verify: it is signed by nobody, or by a key that is not trusted, or damaged")]
    Invalid(Seq),
    /// It is listed, or a later one is, and it is not there.
    #[error("entry {0} is not there")]
    Absent(Seq),
    /// It does not follow from the entries before it.
    #[error("entry {0}: {1}")]
    Breach(Seq, #[source] Breach),
    /// No answer of the store.
    #[error("entry {0} was not read: {1}")]
    Unreadable(Seq, #[source] Fault),
    /// The log was not listed.
    #[error("the log was not listed: {0}")]
    Unlisted(#[source] Fault),
}

impl WalkError {
    /// Whether the store failed, and not what is in it.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreadable(..) | Self::Unlisted(_))
    }

    /// The place that it speaks of.
    pub(crate) const fn seq(&self) -> Option<Seq> {
        match self {
            Self::Invalid(seq) | Self::Absent(seq) | Self::Breach(seq, _) | Self::Unreadable(seq, _) => {
                Some(*seq)
            }
            Self::Unlisted(_) => None,
        }
    }
}

/// An entry, and what it means where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// The entry.
    pub(crate) stored: Stored,
    /// What it means.
    pub(crate) effect: Effect,
    /// Whether it is of the epoch that is in force there: otherwise it has no effect.
    pub(crate) is_in_force: bool,
}

/// The way from genesis to the end of the log as it was when the way began.
pub(crate) struct Walk<'a> {
    io: &'a LogIo,
    chain: Option<Chain>,
    last: Seq,
}

impl<'a> Walk<'a> {
    /// Lists the log.
    pub(crate) async fn begin(io: &'a LogIo) -> Result<Self, WalkError> {
        let last = io.last_after(Seq::GENESIS).await.map_err(WalkError::Unlisted)?;
        Ok(Self { io, chain: None, last: last.unwrap_or(Seq::GENESIS) })
    }

    /// How many entries there are.
    pub(crate) const fn entries(&self) -> u64 {
        self.last.0 + 1
    }

    /// The next entry; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Taken>, WalkError> {
        let seq = self.chain.map_or(Seq::GENESIS, |chain| chain.seq.next());
        if seq > self.last {
            return Ok(None);
        }
        let stored = match self.io.read(seq).await {
            Reading::Found(stored) => stored,
            Reading::Invalid => return Err(WalkError::Invalid(seq)),
            Reading::Absent => return Err(WalkError::Absent(seq)),
            Reading::Failed(fault) => return Err(WalkError::Unreadable(seq, fault)),
        };
        let (chain, effect) = match &self.chain {
            None => (Chain::at_genesis(&stored), Effect::Silent),
            Some(chain) => chain.take(&stored).map_err(|breach| WalkError::Breach(seq, breach))?,
        };
        self.chain = Some(chain);
        let is_in_force = stored.entry.fence() == chain.epoch;
        Ok(Some(Taken { stored, effect, is_in_force }))
    }
}
