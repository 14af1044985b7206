//! One trace shows the whole way of a sync, across actors and threads.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::NodeOptions;
use driftless_chaos::Fleet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const STEPS: [&str; 10] =
    ["step_done", "open", "order", "detect", "remap", "exchange", "stage", "decide", "scatter", "watermark"];

/// Children of each sync's span, by the id of the span.
type Children = Arc<Mutex<BTreeMap<u64, BTreeSet<&'static str>>>>;

struct Recorder(Children);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut children = self.0.lock().unwrap();
        if attributes.metadata().name() == "sync" {
            children.insert(id.into_u64(), BTreeSet::new());
        }
        let parent = context.span(id).and_then(|span| span.parent().map(|parent| parent.id().into_u64()));
        if let Some(steps) = parent.and_then(|parent| children.get_mut(&parent)) {
            steps.insert(attributes.metadata().name());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sync_is_one_span_whose_children_are_the_ten_steps() {
    let children = Children::default();
    let subscriber = tracing_subscriber::registry().with(Recorder(Arc::clone(&children)));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let mut fleet = Fleet::start("megatron:tp=2", &["vllm:tp=2"], NodeOptions::default()).await.unwrap();
    for _ in 0..3 {
        assert!(fleet.step().await.unwrap().is_committed_everywhere());
    }
    let children = children.lock().unwrap();
    assert_eq!(children.len(), 3);
    for steps in children.values() {
        assert_eq!(*steps, BTreeSet::from(STEPS));
    }
}
