//! Intersection of what senders own with what receivers hold.
//!
//! Receiver boxes are indexed by parameter, so each piece meets only boxes of its own parameter.

use super::cells;
use super::fragment::{
    DestBox, DestTensor, Edge, Fragment, Piece, ReceiverPlan, ReplicaPlan, SenderPlan, SourceRun,
};
use crate::engine::RolloutLayout;
use crate::error::LayoutError;
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{Model, ParamMeta, ROUTER_SUFFIX};
use crate::served::{contradiction, router_options};
use crate::trainer::{TrainerLayout, TrainerRank};
use driftless_types::{ReceiverId, ReplicaId, SenderId};
use std::collections::BTreeSet;

/// The most elements of one fragment.
#[derive(Clone, Copy)]
pub(super) struct Longest(pub(super) u64);

/// Senders, replicas, and how many fragments lie between them.
pub(super) fn compile(
    model: &Model,
    trainer: &TrainerLayout,
    rollouts: &[RolloutLayout],
    longest: Longest,
) -> Result<(Vec<SenderPlan>, Vec<ReplicaPlan>, u32), LayoutError> {
    check_routers(model, trainer, rollouts)?;
    let mut replicas = Vec::with_capacity(rollouts.len());
    for (id, layout) in (0..).map(ReplicaId).zip(rollouts) {
        replicas.push(replica(model, id, layout)?);
    }
    let destinations = destinations(model.params(), &replicas);
    let ranks = trainer.ranks(model)?;
    assert_one_owner(model, &ranks);
    let mut fragment_count = 0;
    let mut senders = Vec::with_capacity(ranks.len());
    for (id, rank) in (0..).map(SenderId).zip(ranks) {
        senders.push(sender(model, id, rank, &destinations, longest, &mut fragment_count)?);
    }
    for sender in &senders {
        for edge in &sender.edges {
            let replica = &mut replicas[edge.receiver.replica.0 as usize];
            replica.receivers[edge.receiver.rank as usize].senders.push(sender.id);
        }
    }
    Ok((senders, replicas, fragment_count))
}

/// A model that was made without these layouts' options must not contradict them.
fn check_routers(
    model: &Model,
    trainer: &TrainerLayout,
    rollouts: &[RolloutLayout],
) -> Result<(), LayoutError> {
    let is_router = |meta: &&ParamMeta| meta.fqn.as_str().ends_with(ROUTER_SUFFIX);
    for (dtype, layout) in router_options(trainer, rollouts) {
        if let Some(meta) = model.params().iter().filter(is_router).find(|meta| meta.dtype != dtype) {
            return Err(contradiction(meta.fqn.as_str(), (meta.dtype, "the model"), (dtype, &layout)));
        }
    }
    Ok(())
}

/// LY-1, as far as a count can tell: a broken layout of ours must not plan.
fn assert_one_owner(model: &Model, ranks: &[TrainerRank]) {
    let mut owned = vec![0; model.params().len()];
    for piece in ranks.iter().flat_map(|rank| &rank.tensors).flat_map(|tensor| &tensor.pieces) {
        owned[piece.param.0 as usize] += piece.canonical.elements();
    }
    for (meta, owned) in model.params().iter().zip(owned) {
        assert_eq!(owned, meta.elements(), "LY-1: owned elements of {}", meta.fqn);
    }
}

fn replica(model: &Model, id: ReplicaId, layout: &RolloutLayout) -> Result<ReplicaPlan, LayoutError> {
    let ranks = layout.ranks(model)?.into_iter();
    let receivers = (0..).zip(ranks).map(|(rank, held)| ReceiverPlan {
        id: ReceiverId { replica: id, rank },
        name: format!("rollout{id}/{}", held.name),
        tensors: held.tensors.into_iter().map(destination_tensor).collect(),
        senders: Vec::new(),
    });
    Ok(ReplicaPlan { id, layout: layout.clone(), receivers: receivers.collect() })
}

fn destination_tensor(tensor: LocalTensor) -> DestTensor {
    let boxes = tensor.boxes.into_iter().map(|placed| DestBox {
        param: placed.param,
        canonical: placed.canonical,
        dst_offset: placed.offset,
        dst_row_stride: placed.row_stride,
    });
    DestTensor { name: tensor.name, shape: tensor.shape, dtype: tensor.dtype, boxes: boxes.collect() }
}

/// A place where a box of some parameter lives.
#[derive(Clone, Copy)]
struct Destination {
    receiver: ReceiverId,
    tensor: u32,
    place: DestBox,
    first_in_replica: bool,
}

/// All places of each parameter, in order of their receivers.
fn destinations(params: &[ParamMeta], replicas: &[ReplicaPlan]) -> Vec<Vec<Destination>> {
    let mut of_params = vec![Vec::new(); params.len()];
    for replica in replicas {
        // Ranks of one replica hold equal boxes or disjoint ones, so the first of equals is the first holder.
        let mut seen = BTreeSet::new();
        for receiver in &replica.receivers {
            for (tensor, held) in (0..).zip(&receiver.tensors) {
                for &place in &held.boxes {
                    let first_in_replica = seen.insert((place.param, place.canonical));
                    let receiver = receiver.id;
                    let destination = Destination { receiver, tensor, place, first_in_replica };
                    of_params[place.param.0 as usize].push(destination);
                }
            }
        }
        let held: u64 = seen.iter().map(|(_, canonical)| canonical.elements()).sum();
        let all: u64 = params.iter().map(ParamMeta::elements).sum();
        assert_eq!(held, all, "LY-2: first-held elements of replica {}", replica.id);
    }
    of_params
}

/// The part of one piece that goes to one destination.
struct Part<'a> {
    to: &'a Destination,
    canonical: Box2,
    source: SourceRun,
    cells: Vec<u32>,
}

fn sender(
    model: &Model,
    id: SenderId,
    rank: TrainerRank,
    destinations: &[Vec<Destination>],
    longest: Longest,
    fragment_count: &mut u32,
) -> Result<SenderPlan, LayoutError> {
    let TrainerRank { name, mut tensors } = rank;
    let (mut parts, mut cells) = (Vec::new(), 0);
    for (tensor, source) in (0..).zip(&mut tensors) {
        for piece in &mut source.pieces {
            let to = &destinations[piece.param.0 as usize];
            parts.extend(parts_of(tensor, piece, to, longest, &mut cells)?);
        }
    }
    let mut edges: Vec<Edge> = Vec::new();
    for (receiver, fragment) in merge(model, parts, longest) {
        match edges.last_mut() {
            Some(edge) if edge.receiver == receiver => edge.fragments.push(fragment),
            _ => edges.push(Edge { receiver, fragments: vec![fragment] }),
        }
    }
    for edge in &mut edges {
        edge.fragments.sort_by_key(|fragment| (fragment.dst_tensor, fragment.dst_offset));
        for fragment in &mut edge.fragments {
            fragment.index = *fragment_count;
            *fragment_count = fragment_count.checked_add(1).ok_or(TOO_MANY_FRAGMENTS)?;
        }
    }
    Ok(SenderPlan { id, name, tensors, edges, cells })
}

const TOO_MANY_FRAGMENTS: LayoutError =
    LayoutError::TooLarge { what: "fragments", found: 1 << 32, limit: u32::MAX as u64 };

/// Intersects a piece with the places of its parameter and cuts it into digest cells.
fn parts_of<'a>(
    tensor: u32,
    piece: &mut Piece,
    to: &'a [Destination],
    longest: Longest,
    next_cell: &mut u32,
) -> Result<Vec<Part<'a>>, LayoutError> {
    let mut shares = Vec::new();
    for destination in to {
        let share = piece.canonical.intersection(&destination.place.canonical);
        shares.extend(
            share.into_iter().flat_map(|share| bounded(share, longest)).map(|share| (destination, share)),
        );
    }
    cells::cut(piece, shares.iter().map(|(_, share)| *share), next_cell)?;
    let part = |(to, canonical): (&'a Destination, Box2)| Part {
        to,
        canonical,
        source: SourceRun {
            tensor,
            src_offset: piece.src_offset
                + (canonical.row - piece.canonical.row) * piece.canonical.cols
                + (canonical.col - piece.canonical.col),
            src_row_stride: piece.canonical.cols,
            box_row: 0,
            rows: canonical.rows,
        },
        cells: cells::within(piece, canonical),
    };
    Ok(shares.into_iter().map(part).collect())
}

/// Cuts a box by rows, so that no part is longer than it may be; a single row is never cut.
fn bounded(whole: Box2, longest: Longest) -> impl Iterator<Item = Box2> {
    let rows_at_most = (longest.0 / whole.cols).max(1);
    let first_rows = (whole.row..whole.row_end()).step_by(driftless_types::index_of(rows_at_most));
    first_rows.map(move |row| Box2 { row, rows: rows_at_most.min(whole.row_end() - row), ..whole })
}

/// Joins parts that lie below each other both in the canonical box and at the destination; ascending receiver.
fn merge(model: &Model, mut parts: Vec<Part<'_>>, longest: Longest) -> Vec<(ReceiverId, Fragment)> {
    parts.sort_by_key(|part| {
        let Box2 { row, col, cols, .. } = part.canonical;
        (part.to.receiver, part.to.tensor, part.to.place.dst_offset, col, cols, row)
    });
    let mut merged: Vec<(&Destination, Fragment)> = Vec::with_capacity(parts.len());
    for part in parts {
        match merged.last_mut() {
            Some((to, fragment)) if std::ptr::eq(*to, part.to) && continues(fragment, &part, longest) => {
                extend(fragment, part);
            }
            _ => merged.push((part.to, fragment(model, part))),
        }
    }
    merged.into_iter().map(|(to, fragment)| (to.receiver, fragment)).collect()
}

/// Whether `part`, of the same destination box, lies directly below `fragment`.
fn continues(fragment: &Fragment, part: &Part<'_>, longest: Longest) -> bool {
    let (above, below) = (fragment.canonical, part.canonical);
    above.row_end() == below.row
        && (above.col, above.cols) == (below.col, below.cols)
        && above.elements() + below.elements() <= longest.0
}

fn extend(fragment: &mut Fragment, part: Part<'_>) {
    let box_row = fragment.canonical.rows;
    fragment.canonical.rows += part.canonical.rows;
    fragment.sources.push(SourceRun { box_row, ..part.source });
    fragment.cells.extend(part.cells);
}

/// The fragment of one part; its index is given once all fragments are in order.
fn fragment(model: &Model, part: Part<'_>) -> Fragment {
    let Destination { tensor, place, first_in_replica, .. } = *part.to;
    Fragment {
        index: 0,
        param: place.param,
        dtype: model.meta(place.param).dtype,
        canonical: part.canonical,
        dst_tensor: tensor,
        dst_offset: place.dst_offset
            + (part.canonical.row - place.canonical.row) * place.dst_row_stride
            + (part.canonical.col - place.canonical.col),
        dst_row_stride: place.dst_row_stride,
        sources: vec![part.source],
        cells: part.cells,
        first_in_replica,
    }
}

#[cfg(test)]
mod tests;
