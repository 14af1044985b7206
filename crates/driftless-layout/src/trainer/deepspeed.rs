//! DeepSpeed ZeRO: flat partitions of the parameters of Hugging Face modules, blind to their borders.
//!
//! Stages 1 and 2 hold the optimizer's state alike: per parameter group one flat buffer, in which the group's
//! parameters follow each other in the order in which the modules register them, without gaps; the buffer is padded
//! at its end to a multiple of `world` times [`PARTITION_ALIGNMENT`] and cut into `world` equal partitions, rank by
//! rank. (This is the plain order: `round_robin_gradients` would reorder parameters.)
//!
//! Stage 3 partitions every parameter by itself: flattened, rank r holds `r * ceil(n / world)` onward. The last
//! ranks may hold less, or nothing; what pads them is no element.
//!
//! LY-1: partitions are disjoint, and padding lies in no parameter.

use super::{TrainerLayout, TrainerRank, owned};
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::local::LocalTensor;
use crate::model::{Model, ParamMeta};
use std::ops::Range;

/// A flat buffer is padded to a multiple of the number of ranks times this: four bytes of 16-bit weights.
const PARTITION_ALIGNMENT: u64 = 2;

/// What DeepSpeed partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Optimizer states.
    One,
    /// Optimizer states and gradients: the states lie as in stage 1.
    Two,
    /// Parameters too: each is partitioned by itself.
    Three,
}

/// How many parameter groups the optimizer has; of stage 3 the partition does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZeroGroups {
    /// One, of all parameters.
    One,
    /// Two: first the parameters with weight decay (all with two axes), then those without (norms and biases).
    Decay,
}

/// All ranks in order.
pub(super) fn ranks(
    model: &Model,
    layout: &TrainerLayout,
    world: u64,
    stage: ZeroStage,
    groups: ZeroGroups,
) -> Result<Vec<TrainerRank>, LayoutError> {
    let text = layout.to_string();
    Axis { layout: &text, name: "world", size: world }.must_be_positive()?;
    check_listed(world, model.params().len() as u64)?;
    let params: Vec<&ParamMeta> = model.registration().collect();
    let places = match stage {
        ZeroStage::One | ZeroStage::Two => flat_places(&params, world, groups),
        ZeroStage::Three => params.iter().map(|meta| own_place(meta.elements(), world)).collect(),
    };
    (0..world)
        .map(|rank| {
            let tensor = |(meta, place): (&&ParamMeta, &Place)| {
                let whole = LocalTensor::whole(model, meta.fqn.to_string(), meta.id)?;
                Ok(owned(&whole, place.owned(rank, meta.elements())))
            };
            let tensors = params.iter().zip(&places).map(tensor).collect::<Result<_, LayoutError>>()?;
            Ok(TrainerRank { name: format!("rank{rank}"), tensors })
        })
        .collect()
}

/// Where a parameter starts in what is cut into partitions of `share` elements.
#[derive(Clone, Copy)]
struct Place {
    first: u64,
    share: u64,
}

impl Place {
    /// What `rank` owns of the parameter's elements.
    fn owned(self, rank: u64, elements: u64) -> Range<u64> {
        let bound = |rank: u64| (rank * self.share).clamp(self.first, self.first + elements) - self.first;
        bound(rank)..bound(rank + 1)
    }
}

/// A parameter that is partitioned by itself.
const fn own_place(elements: u64, world: u64) -> Place {
    Place { first: 0, share: elements.div_ceil(world) }
}

/// Parameters that follow each other in the buffer of their group.
fn flat_places(params: &[&ParamMeta], world: u64, groups: ZeroGroups) -> Vec<Place> {
    let has_decay = |meta: &ParamMeta| groups == ZeroGroups::One || meta.shape.extents().len() > 1;
    let group_of = |meta: &ParamMeta| usize::from(!has_decay(meta));
    let mut ends = [0, 0];
    let mut places = Vec::with_capacity(params.len());
    for meta in params {
        let end = &mut ends[group_of(meta)];
        places.push(Place { first: *end, share: 0 });
        *end += meta.elements();
    }
    let shares = ends.map(|end: u64| end.next_multiple_of(world * PARTITION_ALIGNMENT) / world);
    for (meta, place) in params.iter().zip(&mut places) {
        place.share = shares[group_of(meta)];
    }
    places
}
