//! What a user sees: versions appear elsewhere, whatever the store and the actors do on the way.

use anyhow::{Result, ensure};
use driftless::log::{FollowOptions, PublishOptions, Reading, Stored, WholeValues};
use driftless::{Failpoints, Fault, NodeOptions, Site, Version};
use driftless_across::{Away, Home, publish_options, stream};
use driftless_store::faulty::{Fault as StoreFault, Faulty, Operation};
use driftless_store::object_store::ObjectStore;
use driftless_store::object_store::memory::InMemory;
use driftless_types::Seq;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TRAINER: &str = "megatron:tp=2,dp=2";

/// A store that is down while the switch is on.
fn store_with_switch() -> (Arc<dyn ObjectStore>, Arc<AtomicBool>) {
    let down = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&down);
    let plan = move |_: &_| switch.load(Ordering::Acquire).then_some(StoreFault::Unavailable);
    (Arc::new(Faulty::new(Arc::new(InMemory::new()), plan)), down)
}

/// Every entry of the stream, in order.
async fn entries(store: &Arc<dyn ObjectStore>) -> Vec<Stored> {
    let io = stream(store);
    let mut entries = Vec::new();
    for seq in 0.. {
        let Reading::Found(stored) = io.read(Seq(seq)).await else { break };
        entries.push(stored);
    }
    entries
}

/// Versions of the stream, each with its base.
async fn versions(store: &Arc<dyn ObjectStore>) -> Vec<(Option<u64>, u64)> {
    let of = |stored: &Stored| {
        let version = stored.entry.kind.publication()?.version.0;
        Some((stored.entry.kind.base_version().map(|base| base.0), version))
    };
    entries(store).await.iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_its_cluster_and_a_stream() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let node = NodeOptions::default();
    let mut home = Home::start(&store, TRAINER, &["vllm:tp=2"], node, publish_options()).await?;
    home.published(Version(0)).await?;
    let mut away = Away::start(&store, "sglang:tp=4", NodeOptions::default()).await?;
    away.expect(&home);
    for _ in 0..6 {
        let outcome = home.step().await?;
        ensure!(outcome.is_committed_everywhere(), "{outcome:?}");
        away.expect(&home);
        home.ensure_identical()?;
        home.published(home.version()).await?;
        away.ensure_reaches(home.version()).await?;
    }
    let expected: Vec<_> = std::iter::once((None, 0)).chain((0..6).map(|v| (Some(v), v + 1))).collect();
    ensure!(versions(&store).await == expected, "{:?}", versions(&store).await);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lg5_an_outage_costs_one_delta_and_holds_nobody_up() -> Result<()> {
    let (store, down) = store_with_switch();
    let node = NodeOptions { max_pending_density: 1.0, ..NodeOptions::default() };
    let mut home = Home::start(&store, TRAINER, &["vllm:tp=2"], node, publish_options()).await?;
    home.published(Version(0)).await?;
    let mut away = Away::start(&store, "vllm:tp=2", NodeOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(0)).await?;
    down.store(true, Ordering::Release);
    for _ in 0..5 {
        let started = Instant::now();
        let outcome = home.step().await?;
        ensure!(
            outcome.is_committed_everywhere() && started.elapsed() < Duration::from_secs(20),
            "{outcome:?}"
        );
        away.expect(&home);
    }
    away.ensure_holds(Version(0))?;
    down.store(false, Ordering::Release);
    // The version that was under way, and then whatever changed in all the others at once.
    home.published(Version(1)).await?;
    home.step().await?;
    away.expect(&home);
    home.published(Version(6)).await?;
    away.ensure_reaches(Version(6)).await?;
    ensure!(
        versions(&store).await == [(None, 0), (Some(0), 1), (Some(1), 6)],
        "{:?}",
        versions(&store).await
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_density_bound_an_anchor_follows_an_outage() -> Result<()> {
    let (store, down) = store_with_switch();
    let node = NodeOptions { max_pending_density: 0.000_001, ..NodeOptions::default() };
    let mut home = Home::start(&store, TRAINER, &[], node, publish_options()).await?;
    home.published(Version(0)).await?;
    down.store(true, Ordering::Release);
    for _ in 0..3 {
        home.step().await?;
    }
    down.store(false, Ordering::Release);
    home.published(Version(1)).await?;
    home.step().await?;
    home.published(Version(4)).await?;
    ensure!(versions(&store).await == [(None, 0), (Some(0), 1), (None, 4)], "{:?}", versions(&store).await);
    let mut away = Away::start(&store, "hf", NodeOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(4)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trainer_does_not_wait_for_an_upload() -> Result<()> {
    let puts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&puts);
    // Blobs hang until their deadline, entries do not.
    let plan = move |request: &driftless_store::faulty::Request| {
        let is_blob = request.operation == Operation::Put && request.key.as_ref().contains("/blob/");
        let hangs = is_blob && (8..14).contains(&counted.fetch_add(u64::from(is_blob), Ordering::AcqRel));
        hangs.then_some(StoreFault::Hang)
    };
    let store: Arc<dyn ObjectStore> = Arc::new(Faulty::new(Arc::new(InMemory::new()), plan));
    let publish = PublishOptions { values: WholeValues::Copied, anchor_every: Some(1), ..publish_options() };
    let mut home = Home::start(&store, TRAINER, &[], NodeOptions::default(), publish).await?;
    for _ in 0..4 {
        let started = Instant::now();
        home.step().await?;
        drop(home.trainer.step_begin().await);
        ensure!(started.elapsed() < Duration::from_secs(2), "a step took {:?}", started.elapsed());
    }
    // What was under way; and a free log gets the next version that is reported.
    home.published(Version(1)).await?;
    home.step().await?;
    home.published(home.version()).await?;
    ensure!(puts.load(Ordering::Acquire) > 14, "no upload hung");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_on_the_way_is_started_again_and_nothing_is_lost() -> Result<()> {
    for (index, site) in (0u32..).zip(Site::LOG) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let failpoints = Failpoints::default();
        let node = || NodeOptions { failpoints: failpoints.clone(), ..NodeOptions::default() };
        let mut home = Home::start(&store, TRAINER, &[], node(), publish_options()).await?;
        home.published(Version(0)).await?;
        let mut away = Away::start(&store, "vllm:tp=2", node()).await?;
        away.expect(&home);
        for passes in 0..3 {
            failpoints.arm(site, None, Fault::Panic, passes + index % 2);
            home.step().await?;
            away.expect(&home);
            home.published(home.version()).await?;
            away.ensure_reaches(home.version()).await?;
        }
        ensure!(failpoints.pending() < 3, "{site:?} was never passed");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_blob_is_reported_and_changes_nothing() -> Result<()> {
    let damages = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&damages);
    let plan = move |request: &driftless_store::faulty::Request| {
        let is_blob = request.operation == Operation::Get && request.key.as_ref().contains("/blob/");
        (is_blob && switch.load(Ordering::Acquire)).then_some(StoreFault::FlippedBit)
    };
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let reading: Arc<dyn ObjectStore> = Arc::new(Faulty::new(Arc::clone(&inner), plan));
    let mut home = Home::start(&inner, TRAINER, &[], NodeOptions::default(), publish_options()).await?;
    home.published(Version(0)).await?;
    let mut away = Away::start(&reading, "vllm:tp=2", NodeOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(0)).await?;
    damages.store(true, Ordering::Release);
    home.step().await?;
    away.expect(&home);
    home.published(Version(1)).await?;
    let mut status = away.following.status();
    let told =
        tokio::time::timeout(Duration::from_secs(30), status.wait_for(|state| state.trouble.is_some()));
    told.await??;
    away.ensure_holds(Version(0))?;
    ensure!(away.rollout.version().version == Version(0), "a damaged version is served");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lg9_a_publisher_goes_on_in_a_new_epoch_after_each_further_anchor() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let publish = PublishOptions { anchor_every: Some(1), ..publish_options() };
    let mut home = Home::start(&store, TRAINER, &[], NodeOptions::default(), publish).await?;
    for _ in 0..6 {
        home.published(home.version()).await?;
        home.step().await?;
    }
    home.published(Version(6)).await?;
    let of_anchors = entries(&store).await.into_iter().filter(|stored| stored.entry.kind.name() == "anchor");
    let epochs: Vec<u64> = of_anchors.map(|stored| stored.entry.epoch).collect();
    ensure!(epochs == [1, 1, 2, 3], "{epochs:?}");
    let mut away = Away::start(&store, "vllm:tp=2", NodeOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(6)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reader_begins_at_the_nearest_anchor() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let publish = PublishOptions { anchor_every: Some(2), ..publish_options() };
    let mut home = Home::start(&store, TRAINER, &[], NodeOptions::default(), publish).await?;
    for _ in 0..7 {
        home.published(home.version()).await?;
        home.step().await?;
    }
    home.published(Version(7)).await?;
    let anchors = versions(&store).await.into_iter().filter(|(base, _)| base.is_none()).count();
    ensure!(anchors == 3, "{:?}", versions(&store).await);
    let mut away =
        Away::start_as(&store, "vllm:tp=2", NodeOptions::default(), FollowOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(7)).await?;
    Ok(())
}
