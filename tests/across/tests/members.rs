//! Who reads and who writes a stream comes and goes in one process.

use anyhow::{Result, ensure};
use driftless::{NodeError, NodeOptions, Version};
use driftless_across::{Away, Home, publish_options};
use driftless_store::object_store::ObjectStore;
use driftless_store::object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TRAINER: &str = "megatron:tp=2,dp=2";

async fn home(store: &Arc<dyn ObjectStore>) -> Result<Home> {
    let home = Home::start(store, TRAINER, &["hf"], NodeOptions::default(), publish_options()).await?;
    home.published(Version(0)).await?;
    Ok(home)
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_a_follower_leaves_and_joins_again_out_of_service_with_its_hooks() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut home = home(&store).await?;
    let mut away = Away::start(&store, "vllm:tp=2", NodeOptions::default()).await?;
    away.expect(&home);
    away.ensure_reaches(Version(0)).await?;
    let (pauses, resumes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (paused, resumed) = (Arc::clone(&pauses), Arc::clone(&resumes));
    let hooks = move |memory: driftless::RolloutMemory| {
        let memory = memory.with_on_pause(move |_| {
            paused.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
        memory.with_on_resume(move |_| {
            resumed.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        })
    };
    let (mut away, left) = away.leave_and_join(&store, hooks).await?;
    ensure!(left == Some(Version(0)), "{left:?}");
    away.ensure_reaches(Version(0)).await?;
    // It joined out of service, and was let go when its version was proven.
    ensure!((pauses.load(Ordering::SeqCst), resumes.load(Ordering::SeqCst)) == (0, 1));
    home.step().await?;
    away.expect(&home);
    home.published(Version(1)).await?;
    away.ensure_reaches(Version(1)).await?;
    ensure!((pauses.load(Ordering::SeqCst), resumes.load(Ordering::SeqCst)) == (1, 2));
    away.node.stop().await;
    ensure!(away.following.ended().await == driftless::log::FollowEnd::Left);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lg5_a_trainer_that_leaves_and_comes_again_is_published_on() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut home = home(&store).await?;
    let mut away = Away::start(&store, "hf", NodeOptions::default()).await?;
    away.expect(&home);
    for version in 1..=4 {
        home.step().await?;
        away.expect(&home);
        if version % 2 == 0 {
            // Whatever of it is published yet.
            home = home.restart_trainer().await?;
        }
        home.published(Version(version)).await?;
    }
    away.ensure_reaches(Version(4)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lg5_a_log_is_carried_through_a_replan_of_the_same_trainer_and_no_other() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut home = home(&store).await?;
    home.step().await?;
    home.published(Version(1)).await?;
    let mut away = Away::start(&store, "hf", NodeOptions::default()).await?;
    away.expect(&home);
    let mut home = home.replan(TRAINER).await?;
    for version in 2..=3 {
        home.step().await?;
        away.expect(&home);
        home.published(Version(version)).await?;
    }
    away.ensure_reaches(Version(3)).await?;
    let refused = home.replan("megatron:tp=4").await.map(|_| ());
    let refused = refused.err().and_then(|error| error.downcast::<NodeError>().ok());
    ensure!(matches!(refused, Some(NodeError::LogOfAnotherPlan)), "{refused:?}");
    Ok(())
}
