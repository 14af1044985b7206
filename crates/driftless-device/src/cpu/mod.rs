//! The CPU backend: weights in host memory, one core per call.

mod detect;
mod gather;
mod kernels;
mod rehash;
mod remap;
mod scatter;

use crate::fit::check_classes;
use crate::lent::not_on_host;
use crate::{
    Bitset, Buffer, ChangeList, ChangeSource, Changes, ClassedSet, DetectOptions, Detected, Device,
    DeviceError, ElementSet, Elements, ElementsMut, Scattered, SharedBuffer, UndoLog,
};
use detect::Pass;
use driftless_layout::{DestTensor, Fragment, ParamMeta, SourceTensor};
use driftless_numerics::{Cast, DigestKeys};
use driftless_types::{ChangeSet, Digest};
use kernels::{Hasher, Kernels};
use std::sync::atomic::AtomicBool;

/// Host memory and the vector units of this machine's cores.
///
/// A call works on one core: callers split by tensor or fragment to use more.
#[derive(Clone, Copy, Debug)]
pub struct CpuDevice {
    kernels: Kernels,
}

impl CpuDevice {
    /// The backend with the widest instruction set that this machine has.
    #[must_use]
    pub fn new() -> Self {
        Self { kernels: Kernels::detect() }
    }

    /// The backend as any machine can run it: the same bits, slower.
    #[must_use]
    pub const fn portable() -> Self {
        Self { kernels: Kernels::PORTABLE }
    }

    /// One backend per instruction set that this machine has, widest first, the portable one last: for tests that
    /// compare them, and for a start that wants another than the widest.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let wide = Kernels::available().into_iter().flatten();
        wide.chain([Kernels::PORTABLE]).map(|kernels| Self { kernels }).collect()
    }

    /// The same backend without digests, all of which are zero: for benchmarks that ask what they cost. It proves
    /// nothing (DV-4), so weights must not be served with it.
    #[must_use]
    pub fn without_digests(self) -> Self {
        Self { kernels: self.kernels.without_digests() }
    }

    const fn hasher<'a>(&'a self, keys: &'a DigestKeys) -> Hasher<'a> {
        Hasher { kernels: &self.kernels, keys }
    }
}

impl Default for CpuDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        self.kernels.name
    }

    fn detect(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        source: ChangeSource<'_>,
        options: DetectOptions<'_>,
        keys: &DigestKeys,
        cancel: &AtomicBool,
    ) -> Result<Detected, DeviceError> {
        Pass { hasher: self.hasher(keys), cancel }.run(tensor, params, source, options)
    }

    fn remap(&self, changes: &[ChangeList], fragment: &Fragment) -> Result<ChangeSet, DeviceError> {
        let (positions, values) = remap::remap(&on_host(changes)?, fragment)?;
        Ok(ChangeSet::Sparse { positions, values })
    }

    fn remap_classed(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<ClassedSet>, DeviceError> {
        check_classes(changes)?;
        let changes = on_host(changes)?;
        fragments.iter().map(|fragment| remap::remap_classed(&changes, fragment)).collect()
    }

    fn gather(
        &self,
        masters: &[Elements<'_, f32>],
        fragment: &Fragment,
        cast: Cast,
    ) -> Result<ChangeSet, DeviceError> {
        let masters = masters.iter().map(|masters| masters.on_host()).collect::<Result<Vec<_>, _>>()?;
        gather::gather(&self.kernels, &masters, fragment, cast)
    }

    fn scatter(
        &self,
        dst: ElementsMut<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        changes: &ChangeSet,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Scattered, DeviceError> {
        scatter::apply(self.hasher(keys), dst.on_host()?, fragment, param_cols, changes, undo)
    }

    fn read_at(
        &self,
        words: Elements<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        positions: &[u32],
    ) -> Result<Vec<u16>, DeviceError> {
        scatter::read_at(words.on_host()?, fragment, param_cols, positions)
    }

    fn undo(&self, dst: ElementsMut<'_, u16>, undo: &mut UndoLog) -> Result<(), DeviceError> {
        undo.restore(dst.on_host()?)
    }

    fn digest(
        &self,
        words: Elements<'_, u16>,
        tensor: &DestTensor,
        params: &[ParamMeta],
        keys: &DigestKeys,
    ) -> Result<Digest, DeviceError> {
        rehash::rehash(self.hasher(keys), words.on_host()?, tensor, params)
    }

    fn zeros(&self, elements: usize) -> Result<Buffer<f32>, DeviceError> {
        Ok(SharedBuffer::new(vec![0.0; elements]).into())
    }

    fn words(&self, words: Vec<u16>) -> Result<Buffer<u16>, DeviceError> {
        Ok(SharedBuffer::new(words).into())
    }

    fn copy(&self, masters: Elements<'_, f32>) -> Result<Buffer<f32>, DeviceError> {
        Ok(SharedBuffer::new(masters.on_host()?.to_vec()).into())
    }

    fn served_bits(&self, masters: Elements<'_, f32>, cast: Cast) -> Result<Buffer<u16>, DeviceError> {
        let bits = masters.on_host()?.iter().map(|&master| cast.bits(master));
        Ok(SharedBuffer::new(bits.collect()).into())
    }

    fn empty_set(&self, elements: usize) -> Result<ElementSet, DeviceError> {
        Ok(ElementSet::Host(Bitset::new(elements)))
    }

    fn remember(&self, set: &mut ElementSet, changes: &ChangeList) -> Result<(), DeviceError> {
        set.lend().on_host()?.insert_all(&changes.on_host()?.indices);
        Ok(())
    }

    fn count(&self, set: &ElementSet) -> Result<u64, DeviceError> {
        match set {
            ElementSet::Host(set) => Ok(set.count()),
            ElementSet::Device(buffer) => Err(not_on_host(buffer.memory())),
        }
    }
}

fn on_host(changes: &[ChangeList]) -> Result<Vec<&Changes>, DeviceError> {
    changes.iter().map(ChangeList::on_host).collect()
}
