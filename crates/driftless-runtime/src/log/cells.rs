//! Where each canonical box of a log's parameters lies in one replica, and how a version is proven there.
//!
//! An entry of the log states one digest per parameter. Ranks of a replica hold equal boxes of a parameter or disjoint
//! ones, so two things prove a version: the digests of the first holders add up to the parameter's, and every other
//! holder of a box has the digest of the first.

use crate::binding::LiveTensor;
use driftless_device::{Device, DeviceError};
use driftless_layout::{DestBox, DestTensor, ParamMeta, ReplicaPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, ParamId, index_of};
use std::collections::BTreeMap;

/// A place where a box of a parameter lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// The rank.
    pub(crate) receiver: usize,
    /// Its tensor.
    pub(crate) tensor: usize,
    /// The box, and where it lies there.
    pub(crate) place: DestBox,
    /// The first cell that holds the same box: itself, unless it is a copy.
    first: usize,
}

/// All cells of one replica.
#[derive(Debug)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
    /// Indices of cells, by parameter.
    of_params: Vec<Vec<usize>>,
}

impl Cells {
    /// The cells of a replica.
    pub(crate) fn of(replica: &ReplicaPlan, params: usize) -> Self {
        let (mut cells, mut of_params) = (Vec::new(), vec![Vec::new(); params]);
        let mut firsts = BTreeMap::new();
        for (receiver, plan) in replica.receivers.iter().enumerate() {
            for (tensor, held) in plan.tensors.iter().enumerate() {
                for &place in &held.boxes {
                    let index = cells.len();
                    let first = *firsts.entry((place.param, place.canonical)).or_insert(index);
                    of_params[index_of(place.param.0.into())].push(index);
                    cells.push(Cell { receiver, tensor, place, first });
                }
            }
        }
        Self { cells, of_params }
    }

    /// The places of one parameter, each with its index.
    pub(crate) fn of_param(&self, param: ParamId) -> impl Iterator<Item = (usize, &Cell)> {
        self.of_params[index_of(param.0.into())].iter().map(|&index| (index, &self.cells[index]))
    }

    /// Whether a cell is counted: copies are not.
    pub(crate) fn is_first(&self, index: usize) -> bool {
        self.cells[index].first == index
    }

    /// Hashes every cell anew.
    ///
    /// # Errors
    /// [`DeviceError`] if the memory is not what the plan says.
    pub(crate) fn rehash(
        &self,
        replica: &ReplicaPlan,
        memory: &[&[LiveTensor]],
        params: &[ParamMeta],
        device: &dyn Device,
        keys: &DigestKeys,
    ) -> Result<Vec<Digest>, DeviceError> {
        let hash = |cell: &Cell| {
            let live = &memory[cell.receiver][cell.tensor];
            let whole = &replica.receivers[cell.receiver].tensors[cell.tensor];
            let held = live.tensor(whole);
            // The boxes of a tensor with strides are cut into rows: those that lie in this cell are its own.
            let own = held.boxes.iter().filter(|own| {
                own.param == cell.place.param
                    && own.canonical.intersection(&cell.place.canonical) == Some(own.canonical)
            });
            let part = DestTensor { boxes: own.copied().collect(), ..held.clone() };
            device.digest(live.words.lend().elements(), &part, params, keys)
        };
        self.cells.iter().map(hash).collect()
    }

    /// The parameters that are not what a version's entry states: their digest differs, or two of their copies do.
    pub(crate) fn differing(&self, cells: &[Digest], stated: &[Digest]) -> Vec<ParamId> {
        let is_right = |indices: &[usize], stated: Digest| {
            let firsts: Digest = indices.iter().filter(|&&i| self.is_first(i)).map(|&i| cells[i]).sum();
            firsts == stated && indices.iter().all(|&i| cells[i] == cells[self.cells[i].first])
        };
        let stated = (0..).map(ParamId).zip(self.of_params.iter().zip(stated));
        stated.filter(|(_, (indices, stated))| !is_right(indices, **stated)).map(|(param, _)| param).collect()
    }
}
