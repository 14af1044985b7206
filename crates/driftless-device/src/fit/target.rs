//! Where a box lies in a destination tensor, and what may be written there.

use super::area::Area;
use super::runs::{check_listable, name_of};
use crate::DeviceError;
use driftless_layout::Fragment;
use driftless_types::{ChangeSet, Dtype, index_of};

/// Where a box lies in a destination tensor, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) offset: usize,
    pub(crate) row_stride: usize,
}

impl Target {
    /// A place for the box `area` in a tensor of `elements`.
    pub(crate) fn new(
        area: &Area,
        dst_offset: u64,
        dst_row_stride: u64,
        elements: usize,
        name: &dyn Fn() -> String,
    ) -> Result<Self, DeviceError> {
        let misfit = |what, found, limit| DeviceError::Misfit { what, name: name(), found, limit };
        if area.rows > 1 && dst_row_stride < area.cols as u64 {
            return Err(misfit("the width", area.cols as u64, dst_row_stride));
        }
        if area.elements() == 0 {
            return Ok(Self { offset: 0, row_stride: area.cols });
        }
        let end = (area.rows as u64 - 1)
            .saturating_mul(dst_row_stride)
            .saturating_add(dst_offset)
            .saturating_add(area.cols as u64);
        if end > elements as u64 {
            return Err(misfit("the end in its tensor", end, elements as u64));
        }
        // The stride of a single row is never used, and might be anything.
        let row_stride = if area.rows > 1 { dst_row_stride } else { area.cols as u64 };
        Ok(Self { offset: index_of(dst_offset), row_stride: index_of(row_stride) })
    }

    /// The element of the tensor at row-major position `k` of the box.
    pub(crate) const fn element(&self, area: &Area, k: usize) -> usize {
        self.offset + k / area.cols * self.row_stride + k % area.cols
    }

    /// How many elements from position `k` on follow each other in the tensor.
    pub(crate) const fn contiguous(&self, area: &Area, k: usize) -> usize {
        if self.row_stride == area.cols { area.elements() - k } else { area.cols - k % area.cols }
    }
}

/// A fragment and its place in a destination tensor, checked to fit.
pub(crate) struct FragmentFit<'a> {
    pub(crate) fragment: &'a Fragment,
    pub(crate) area: Area,
    pub(crate) target: Target,
}

impl<'a> FragmentFit<'a> {
    /// The place of `fragment` in a tensor of `dst_words` words; `param_cols` is the width of its parameter.
    pub(crate) fn new(
        dst_words: usize,
        fragment: &'a Fragment,
        param_cols: u64,
    ) -> Result<Self, DeviceError> {
        let name: &dyn Fn() -> String = &|| name_of(fragment);
        let elements = fragment.canonical.rows.saturating_mul(fragment.canonical.cols);
        if elements > u64::from(u32::MAX) {
            let limit = u64::from(u32::MAX);
            return Err(DeviceError::Misfit {
                what: "the element count",
                name: name(),
                found: elements,
                limit,
            });
        }
        let area = Area::new(&fragment.canonical, param_cols, name)?;
        let dst_elements = dst_words / fragment.dtype.words();
        let target = Target::new(&area, fragment.dst_offset, fragment.dst_row_stride, dst_elements, name)?;
        Ok(Self { fragment, area, target })
    }

    /// Whether `changes` are ones of this fragment.
    pub(crate) fn check(&self, changes: &ChangeSet) -> Result<(), DeviceError> {
        match changes {
            ChangeSet::All(words) => self.check_all(words),
            ChangeSet::Sparse { positions, values } => self.check_sparse(positions, values),
        }
    }

    fn refuse(&self, found: String, expected: String) -> DeviceError {
        DeviceError::ChangeSet { fragment: self.fragment.index, found, expected }
    }

    fn check_all(&self, words: &[u16]) -> Result<(), DeviceError> {
        let expected = self.area.elements() * self.fragment.dtype.words();
        if words.len() != expected {
            return Err(self.refuse(format!("{} words", words.len()), format!("{expected}")));
        }
        Ok(())
    }

    fn check_sparse(&self, positions: &[u32], values: &[u16]) -> Result<(), DeviceError> {
        self.check_sparse_shape(positions, values)?;
        self.check_positions(positions)
    }

    /// Whether single elements of this fragment may be named, and these are some of them.
    pub(crate) fn check_positions(&self, positions: &[u32]) -> Result<(), DeviceError> {
        check_listable(self.fragment)?;
        if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(self.refuse(format!("position {} after {}", pair[1], pair[0]), "them to rise".into()));
        }
        match positions.last() {
            Some(&last) if last as usize >= self.area.elements() => {
                Err(self.refuse(format!("position {last}"), format!("less than {}", self.area.elements())))
            }
            _ => Ok(()),
        }
    }

    fn check_sparse_shape(&self, positions: &[u32], values: &[u16]) -> Result<(), DeviceError> {
        if self.fragment.dtype != Dtype::Bf16 {
            return Err(self.refuse(format!("single {} elements", self.fragment.dtype), "all of them".into()));
        }
        if positions.len() != values.len() {
            return Err(self.refuse(format!("{} values", values.len()), format!("{}", positions.len())));
        }
        Ok(())
    }

    /// [`Self::check`] of everything but the positions, which a device looks at itself.
    #[cfg(feature = "cuda")]
    pub(crate) fn check_shape(&self, changes: &ChangeSet) -> Result<(), DeviceError> {
        match changes {
            ChangeSet::All(words) => self.check_all(words),
            ChangeSet::Sparse { positions, values } => self.check_sparse_shape(positions, values),
        }
    }

    /// What a device found in the positions.
    #[cfg(feature = "cuda")]
    pub(crate) fn bad_positions(&self, found: &str) -> DeviceError {
        self.refuse(found.to_owned(), format!("them to rise, and to be less than {}", self.area.elements()))
    }
}
