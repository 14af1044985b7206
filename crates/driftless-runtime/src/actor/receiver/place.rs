//! A receiver takes everything in place: a window of each sender at a time, then the proof.

use super::{ReceiverMsg, ReceiverState};
use crate::binding::{Live, ReceiverBinding};
use crate::work::{self, Window};
use crate::{Phase, Shared, Step};
use driftless_proto::RootCause;
use driftless_transport::Batch;
use driftless_types::{Fence, Member, Payload, Round, SenderId, index_of};
use ractor::ActorRef;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

impl ReceiverState {
    /// Asks a sender for a window and writes it. Asking is a message without bytes: only after it does the sender cast.
    pub(super) fn window(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence, from: SenderId, index: u32) {
        let windows = self.windows_of(from);
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        let cancel = self.tasks.cancel_flag();
        let span = Step::Exchange.span(&shared, fence.version, binding.id);
        self.tasks.spawn(async move {
            let moved = async {
                let window = windows.get(index_of(index.into()));
                let window = window.ok_or_else(|| RootCause::Task(format!("there is no window {index}")))?;
                let bytes = take(&shared, &binding, fence, from, window).instrument(span).await?;
                let mut live = binding.token().await; // CM-9
                let window = window.clone();
                let write = move || {
                    let window = (from, &window);
                    work::write_window(&shared, &binding, &mut live, &fence, window, bytes, &cancel)
                };
                let written = tokio::task::spawn_blocking(write).await;
                written.unwrap_or_else(|panicked| Err(RootCause::Task(panicked.to_string())))
            };
            let outcome = moved.await;
            let _ = me.cast(ReceiverMsg::WindowMoved(fence, from, outcome));
        });
    }

    /// Both ends cut alike; once for an attempt.
    fn windows_of(&mut self, from: SenderId) -> Arc<Vec<Window>> {
        let (plan, me) = (&self.shared.plan, self.binding.id);
        let limit = self.shared.options.limits.window_bytes;
        let cut = || {
            let fragments = plan.edge(from, me).map_or(&[][..], |edge| &edge.fragments);
            Arc::new(work::windows(fragments, limit))
        };
        Arc::clone(self.windows.entry(from).or_insert_with(cut))
    }

    /// Everything is written: the live weights themselves are hashed.
    pub(super) fn prove(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        self.windows.clear();
        self.shared.ledger.took(fence.version, Phase::Transfer, self.moved_at.elapsed());
        let promised = work::promised(&self.shared, self.binding.id, &self.records);
        self.records.clear();
        let run = move |shared: &Shared, binding: &ReceiverBinding, live: &mut Live| {
            let started = Instant::now();
            let outcome = work::prove(shared, binding, live, &fence, &promised?);
            shared.ledger.took(fence.version, Phase::Apply, started.elapsed());
            outcome
        };
        self.with_live(run, move |outcome| {
            let _ = me.cast(ReceiverMsg::Scattered(fence, outcome));
        });
    }
}

async fn take(
    shared: &Shared,
    binding: &ReceiverBinding,
    fence: Fence,
    from: SenderId,
    window: &Window,
) -> Result<bytes::Bytes, RootCause> {
    let fragments = shared.plan.edge(from, binding.id).map_or(&[][..], |edge| &edge.fragments);
    let peer = Member::Sender(from);
    let batch = Batch {
        fence,
        round: Round::Payload,
        me: Member::Receiver(binding.id),
        sends: vec![(peer, Payload::Host(bytes::Bytes::new()))],
        receives: vec![(peer, work::window_bytes(fragments, window))],
    };
    let moved = shared.transport.transfer(batch).await;
    let moved = moved.map_err(|error| RootCause::Transport(error.to_string()))?;
    let bytes = moved.into_iter().map(|(_, Payload::Host(bytes))| bytes).next();
    bytes.ok_or_else(|| RootCause::Transport("a transfer without what it was for".into()))
}
