//! What a reader must not do, whatever it finds: serve what it has not proven, write while its engine is on the way back.

use anyhow::{Result, ensure};
use driftless::log::{FollowOptions, InProcess, Keep, Stored, remove_unfinished, replace};
use driftless::{NodeOptions, Version};
use driftless_across::{Away, Home, publish_options, stream};
use driftless_store::object_store::ObjectStore;
use driftless_store::object_store::memory::InMemory;
use driftless_types::{Entry, EntryKind, ObjectDigest, Publication, Seq, StreamId, Writers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TRAINER: &str = "megatron:tp=2,dp=2";

#[tokio::test(flavor = "multi_thread")]
async fn cm14_weights_that_are_not_what_was_kept_are_not_served() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut home = Home::start(&store, TRAINER, &[], NodeOptions::default(), publish_options()).await?;
    home.published(Version(0)).await?;
    home.step().await?;
    home.published(Version(1)).await?;
    let keep: Arc<dyn Keep> = Arc::new(InProcess::default());
    // The second finds the first one's place, and not its weights.
    for _ in 0..2 {
        let (node, follow) = (NodeOptions::default(), FollowOptions::default());
        let mut away = Away::start_from(&store, "vllm:tp=2", node, follow, Arc::clone(&keep)).await?;
        away.expect(&home);
        away.ensure_reaches(Version(1)).await?;
        ensure!(keep.load()?.cursor.is_some_and(|cursor| cursor.held.is_some()), "no place was kept");
        away.node.stop().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cm1_nothing_is_written_while_the_engine_resumes() -> Result<()> {
    const VERSIONS: u64 = 5;
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut home = Home::start(&store, TRAINER, &[], NodeOptions::default(), publish_options()).await?;
    home.published(Version(0)).await?;
    let mut away = Away::start(&store, "vllm:tp=2", NodeOptions::default()).await?;
    away.expect(&home);
    away.rollout.settled().await;
    away.ensure_reaches(Version(0)).await?;
    let (resumes, torn) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, found, live) = (Arc::clone(&resumes), Arc::clone(&torn), away.live().to_vec());
    away.rollout.on_resume(move |_| {
        let (counted, found, live) = (Arc::clone(&counted), Arc::clone(&found), live.clone());
        async move {
            let words = || -> Vec<Vec<u16>> {
                live.iter().flatten().map(|tensor| tensor.view().expect("host memory").to_vec()).collect()
            };
            let before = words();
            tokio::time::sleep(Duration::from_millis(200)).await;
            found.fetch_add(u64::from(before != words()), Ordering::AcqRel);
            counted.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
    });
    for version in 1..=VERSIONS {
        home.step().await?;
        away.expect(&home);
        home.published(Version(version)).await?;
    }
    away.ensure_reaches(Version(VERSIONS)).await?;
    let (resumes, torn) = (resumes.load(Ordering::Acquire), torn.load(Ordering::Acquire));
    ensure!(resumes >= VERSIONS - 1, "the engine resumed {resumes} times");
    ensure!(torn == 0, "weights changed {torn} times under an engine that was resuming");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lg13_damaged_manifests_are_missing_and_not_an_outage() -> Result<()> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let io = stream(&store);
    let (epoch, version) = (1, Version(3));
    let digests = io.stream.put_blob(epoch, vec![0; 16].into()).await?;
    let manifests = io.stream.put_blob(epoch, b"no manifests".to_vec().into()).await?;
    let publication = Publication { version, writer_count: 2, writers: Writers::Blob(manifests), digests };
    let entry = Entry {
        stream: StreamId([1; 16]),
        seq: Seq(1),
        epoch,
        created_by: 0,
        parent: ObjectDigest::ZERO,
        kind: EntryKind::Anchor(publication),
    };
    let stored = Stored { entry: Arc::new(entry), object: ObjectDigest([2; 32]), signer: None };
    let found = io.presence(&stored).await;
    ensure!(format!("{found:?}") == "Missing", "{found:?}");
    Ok(())
}

#[test]
fn what_a_killed_reader_had_not_finished_is_removed() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("driftless-readers-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut unfinished = None;
    replace(&folder.join("weights"), |file| {
        // A process that is killed here leaves what is in the folder now.
        let names = std::fs::read_dir(&folder)?.map(|found| Ok(found?.path()));
        unfinished = names.collect::<std::io::Result<Vec<_>>>()?.pop();
        file.write_all(b"new")
    })?;
    let unfinished = unfinished.ok_or_else(|| anyhow::anyhow!("nothing was there while it was written"))?;
    ensure!(!unfinished.exists(), "it is still there");
    std::fs::write(&unfinished, b"half")?;
    remove_unfinished(&folder)?;
    let left: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    std::fs::remove_dir_all(&folder)?;
    ensure!(left.len() == 1 && left[0].file_name() == "weights", "{left:?}");
    Ok(())
}
