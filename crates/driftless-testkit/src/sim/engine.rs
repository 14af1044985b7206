//! An engine behind its two hooks, which run one after the other in the order they were called.

use super::message::Address;
use driftless_proto::{Engine, RootCause};
use driftless_types::Fence;
use std::collections::VecDeque;

/// A call of a hook by one life of a lead.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) by: Address,
    pub(super) hook: Hook,
}

#[derive(Clone, Debug)]
pub(super) enum Hook {
    /// Pause, with what it will return.
    Pause(Fence, Result<(), RootCause>),
    Resume,
}

#[derive(Debug)]
pub(super) struct EngineSim {
    pub(super) real: Engine,
    calls: VecDeque<Call>,
}

impl EngineSim {
    pub(super) const fn new() -> Self {
        Self { real: Engine::Serving, calls: VecDeque::new() }
    }

    /// What a lead that comes back must assume: a pause that was called and has not returned counts.
    pub(super) fn assumed(&self) -> Engine {
        let pausing = self.calls.iter().any(|call| matches!(call.hook, Hook::Pause(..)));
        if pausing { Engine::Paused } else { self.real }
    }

    /// Queues a call; true if it starts at once.
    pub(super) fn call(&mut self, call: Call) -> bool {
        self.calls.push_back(call);
        self.calls.len() == 1
    }

    /// The running call returns.
    pub(super) fn returned(&mut self) -> Option<Call> {
        let call = self.calls.pop_front()?;
        match &call.hook {
            Hook::Pause(_, Ok(())) => self.real = Engine::Paused,
            Hook::Pause(_, Err(_)) => {}
            Hook::Resume => self.real = Engine::Serving,
        }
        Some(call)
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty()
    }
}
