//! Names and numbers of things.

use crate::Hex;
use derive_more::Display;
use std::fmt;
use std::sync::Arc;

/// A parameter's Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fqn(Arc<str>);

impl Fqn {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Fqn {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for Fqn {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl std::borrow::Borrow<str> for Fqn {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of the weights a rollout serves; it grows, possibly with gaps.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);
/// One try at a version for one replica within an epoch.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u32);
/// A life of one member: a process or actor that lost its binding comes back with a higher one.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);
/// The rank of a parameter's FQN in byte order, over all canonical parameters of the model.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);
/// A rank of the trainer.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SenderId(pub u32);
/// A replica: the receivers that make up one engine and switch versions together.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(pub u32);

/// A receiver: one rank of one replica. Receiver 0 of a replica is its lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiverId {
    /// The replica it belongs to.
    pub replica: ReplicaId,
    /// Its rank within the replica.
    pub rank: u32,
}

impl ReceiverId {
    /// Whether this receiver decides the switch of its replica.
    #[must_use]
    pub const fn is_lead(self) -> bool {
        self.rank == 0
    }
}

impl fmt::Display for ReceiverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rollout{}/{}", self.replica, self.rank)
    }
}

/// Anyone who takes part in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// A trainer rank.
    Sender(SenderId),
    /// A rollout rank.
    Receiver(ReceiverId),
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sender(sender) => write!(f, "trainer/{sender}"),
            Self::Receiver(receiver) => fmt::Display::fmt(receiver, f),
        }
    }
}

/// A training run, as the 16 bytes of its UUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

/// A generation of the coordinator: the fencing token. Compared as a pair, the counter first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch {
    /// One more than the highest counter that any member reported.
    pub counter: u64,
    /// Random bits of the coordinator's life: two coordinators that counted alike still differ.
    pub incarnation: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.counter, self.incarnation & 0xffff_ffff)
    }
}

/// The BLAKE3 digest of everything two sides must agree on before bytes move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanDigest(pub [u8; 32]);

impl fmt::Display for PlanDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}
