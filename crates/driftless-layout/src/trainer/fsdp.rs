//! PyTorch FSDP2: every parameter of the Hugging Face modules, cut along its first axis.
//!
//! Chunk r of an axis of n is `r * ceil(n / shards)` onward: the last chunks may be shorter than the others, or
//! empty. With replicas (HSDP) ranks count shards fastest, then replicas.
//!
//! LY-1: of equal shards only that of the first replica owns; the others list their tensors with nothing in them.

use super::{TrainerLayout, TrainerRank, owned};
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::local::LocalTensor;
use crate::model::{Model, ParamMeta};
use crate::plan::SourceTensor;

/// All ranks of `replicas` replicas, `world` together, in order.
pub(super) fn ranks(
    model: &Model,
    layout: &TrainerLayout,
    world: u64,
    replicas: u64,
) -> Result<Vec<TrainerRank>, LayoutError> {
    let text = layout.to_string();
    let axis = |name, size| Axis { layout: &text, name, size };
    axis("world", world).must_be_positive()?;
    axis("replicas", replicas).must_divide("world", world)?;
    check_listed(world, model.params().len() as u64)?;
    let shards = world / replicas;
    (0..world)
        .map(|rank| {
            let (replica, shard) = (rank / shards, rank % shards);
            let name = match replicas {
                1 => format!("shard{shard}"),
                _ => format!("replica{replica}-shard{shard}"),
            };
            let tensor = |meta| match replica {
                0 => chunk(model, meta, shard, shards),
                _ => Ok(SourceTensor { name: meta.fqn.to_string(), range: 0..0, pieces: Vec::new() }),
            };
            let tensors = model.registration().map(tensor).collect::<Result<_, _>>()?;
            Ok(TrainerRank { name, tensors })
        })
        .collect()
}

/// Chunk `shard` of a parameter: the whole of what the rank holds of it.
fn chunk(model: &Model, meta: &ParamMeta, shard: u64, shards: u64) -> Result<SourceTensor, LayoutError> {
    let rows_each = meta.leading().div_ceil(shards);
    let bound = |shard: u64| (shard * rows_each).min(meta.leading());
    let rows = bound(shard)..bound(shard + 1);
    let shape = meta.shape_of_rows(rows.end - rows.start);
    let tensor = LocalTensor::new(model, meta.fqn.to_string(), shape, &[meta.id])?.with_rows(meta, rows, 0);
    Ok(owned(&tensor, 0..tensor.elements()))
}
