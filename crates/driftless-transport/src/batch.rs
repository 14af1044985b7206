//! What every transport takes and gives.

use crate::TransportError;
use driftless_types::{Fence, Member, Payload, Round};
use std::pin::Pin;

/// All sends and receives of one member in one round of an exchange, posted at once (EX-3).
#[derive(Clone, Debug)]
pub struct Batch {
    /// The exchange, and all that its members must agree on.
    pub fence: Fence,
    /// The round.
    pub round: Round,
    /// Who posts the batch.
    pub me: Member,
    /// What goes to whom. Empty payloads move too, and a member may send to itself.
    pub sends: Vec<(Member, Payload)>,
    /// From whom how many bytes are taken, exactly.
    pub receives: Vec<(Member, u64)>,
}

/// A batch in flight. It resolves when every send is handed over and every receive has arrived, with the payloads
/// in the order of [`Batch::receives`].
///
/// Nothing happens before it is polled. Dropping it withdraws its receives, and drops what already arrived for
/// them: after that the exchange can only be aborted.
pub type Transfer<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<(Member, Payload)>, TransportError>> + Send + 'a>>;

/// What a transport is and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name under which it is configured and logged.
    pub name: &'static str,
    /// The most bytes of one exchange that it holds for members that have not posted yet.
    pub early_bytes_max: u64,
}

impl Capabilities {
    /// The capabilities of a transport of this name.
    #[must_use]
    pub const fn new(name: &'static str, early_bytes_max: u64) -> Self {
        Self { name, early_bytes_max }
    }
}

/// Moves batches between members.
pub trait Transport: Send + Sync + 'static {
    /// What it is and what it can do.
    fn capabilities(&self) -> Capabilities;

    /// Posts a batch and waits until it has moved.
    ///
    /// # Errors
    /// [`TransportError`]: the exchange was aborted or is over, the epoch is not the newest, another fence was seen
    /// for this exchange, a payload has another size than was announced, or a bound was hit.
    fn transfer(&self, batch: Batch) -> Transfer<'_>;

    /// Ends every pending and every future transfer of this exchange with [`TransportError::Aborted`], and forgets
    /// its bytes. Does nothing if the exchange is over, or if its fence is another.
    fn abort(&self, fence: &Fence);

    /// The exchange is over for all of its members: forgets what it left. A transfer that still waits or comes fails
    /// with [`TransportError::Over`], so it is called by the one who knows that every member is done.
    fn retire(&self, fence: &Fence);
}
