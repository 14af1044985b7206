//! A log whose trainer and whose reader live on the stand-in's GPU.

use crate::fleet::{block_on, options};
use anyhow::{Context, Result, ensure};
use driftless::Version;
use driftless::log::{LogSection, LogView, Reading};
use driftless_across::{Away, Home, publish_options, stream};
use driftless_cuda_tests::{gpu, on_standin};
use driftless_types::Seq;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::sync::Arc;

/// Sparse sections of the entry with this number: all, and those whose values are relative to a base.
async fn sections(store: &Arc<dyn ObjectStore>, seq: u64) -> Result<(usize, usize)> {
    let io = stream(store);
    let Reading::Found(stored) = io.read(Seq(seq)).await else { anyhow::bail!("no entry {seq}") };
    let publication = stored.entry.kind.publication().context("an entry with weights")?;
    let epoch = stored.entry.epoch;
    let (mut sparse, mut relative) = (0, 0);
    for blob in io.writers(epoch, publication).await?.iter().flat_map(|writer| &writer.blobs) {
        let mut bytes = io.stream.get_blob(epoch, blob).await?;
        while !bytes.is_empty() {
            let section = LogSection::parse_any(&mut bytes)?;
            if let LogView::Sparse(blocks) = section.view() {
                sparse += 1;
                relative += usize::from(blocks.needs_base());
            }
        }
    }
    Ok((sparse, relative))
}

/// Classes leave the trainer's GPU with their changes, and the reader's GPU hands over the words that they count from.
#[test]
fn lg5_a_log_by_small_steps_goes_from_gpu_to_gpu() -> Result<()> {
    on_standin("log::lg5_a_log_by_small_steps_goes_from_gpu_to_gpu", &[], || {
        block_on(async {
            let (gpu, store): (_, Arc<dyn ObjectStore>) = (gpu()?, Arc::new(InMemory::new()));
            let mut home =
                Home::start(&store, "megatron:tp=2", &["hf"], options(&gpu), publish_options()).await?;
            let first = home.published(Version(0)).await?;
            // Its boxes are parts of those of the log.
            let mut away = Away::start(&store, "vllm:tp=2", options(&gpu)).await?;
            away.expect(&home);
            away.ensure_reaches(Version(0)).await?;
            for step in 1..=3 {
                let outcome = home.step().await?;
                ensure!(outcome.is_committed_everywhere(), "{outcome:?}");
                away.expect(&home);
                home.ensure_identical()?;
                home.published(home.version()).await?;
                away.ensure_reaches(home.version()).await?;
                let (sparse, relative) = sections(&store, first.seq.0 + step).await?;
                ensure!(
                    relative > 4 && relative <= sparse,
                    "{relative} of {sparse} sections count from a base"
                );
            }
            away.node.stop().await;
            home.node.stop().await;
            Ok(())
        })
    })
}
