//! Boxes of a canonical parameter: which part of it a section of a log carries.

use crate::CodecError;

/// The most axes that a box has.
pub const MAX_AXES: usize = 8;

/// A box of a parameter in its canonical coordinates: no axis is empty, and its volume fits 64 bits.
///
/// Its elements are numbered row-major, the last axis fastest. A parameter without axes has one box of one element.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CanonicalBox {
    /// Origin and extent along each axis.
    axes: Vec<(u64, u64)>,
}

impl CanonicalBox {
    /// The box of `extent[i]` indices from `origin[i]` on along axis `i`.
    ///
    /// # Errors
    /// Another number of origins than of extents, more than [`MAX_AXES`] of them, an extent of 0, or an end or a volume
    /// that does not fit 64 bits.
    pub fn new(origin: &[u64], extent: &[u64]) -> Result<Self, CodecError> {
        if origin.len() != extent.len() {
            let (found, expected) = (extent.len() as u64, origin.len() as u64);
            return Err(CodecError::Mismatch { what: "number of extents", found, expected });
        }
        Self::of(origin.iter().copied().zip(extent.iter().copied()).collect())
    }

    /// The box that is a whole parameter.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn whole(shape: &[u64]) -> Result<Self, CodecError> {
        Self::of(shape.iter().map(|&extent| (0, extent)).collect())
    }

    fn of(axes: Vec<(u64, u64)>) -> Result<Self, CodecError> {
        check_axes(axes.len())?;
        let mut volume = 1_u64;
        for (axis, &(origin, extent)) in axes.iter().enumerate() {
            let grown = volume.checked_mul(extent).filter(|&grown| grown > 0);
            let (Some(grown), Some(_)) = (grown, origin.checked_add(extent)) else {
                return Err(CodecError::BoxRefused { axis, origin, extent });
            };
            volume = grown;
        }
        Ok(Self { axes })
    }

    /// The first index along each axis.
    pub fn origin(&self) -> impl ExactSizeIterator<Item = u64> {
        self.axes.iter().map(|&(origin, _)| origin)
    }

    /// How many indices it spans along each axis.
    pub fn extent(&self) -> impl ExactSizeIterator<Item = u64> {
        self.axes.iter().map(|&(_, extent)| extent)
    }

    /// How many elements it holds.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.extent().product()
    }

    /// The box cut into boxes of at most `most` elements each, which follow each other in its row-major order: the
    /// positions of one, shifted by the volumes before it, are those of the whole.
    ///
    /// # Panics
    /// If `most` is 0.
    #[must_use]
    pub fn cut(&self, most: u64) -> Vec<Self> {
        assert!(most > 0, "a piece holds at least one element");
        let mut pieces = vec![self.clone()];
        for axis in 0..self.axes.len() {
            pieces = pieces.iter().flat_map(|piece| piece.cut_along(axis, most)).collect();
        }
        pieces
    }

    /// Cuts along one axis; those before it have an extent of 1 wherever a piece is still too large.
    fn cut_along(&self, axis: usize, most: u64) -> Vec<Self> {
        if self.volume() <= most {
            return vec![self.clone()];
        }
        let (origin, extent) = self.axes[axis];
        let slice = self.volume() / extent;
        let step = usize::try_from((most / slice).max(1)).unwrap_or(usize::MAX);
        let piece = |first: u64| {
            let mut axes = self.axes.clone();
            axes[axis] = (origin + first, (extent - first).min(step as u64));
            Self { axes }
        };
        (0..extent).step_by(step).map(piece).collect()
    }

    /// Checks that it lies in a parameter of this shape.
    pub(crate) fn check_within(&self, shape: &[u64]) -> Result<(), CodecError> {
        if self.axes.len() != shape.len() {
            let (found, expected) = (self.axes.len() as u64, shape.len() as u64);
            return Err(CodecError::Mismatch { what: "number of axes", found, expected });
        }
        for (axis, (&(origin, extent), &shape)) in self.axes.iter().zip(shape).enumerate() {
            // It was checked not to overflow when the box was made.
            let end = origin + extent;
            if end > shape {
                return Err(CodecError::BoxOutside { axis, end, shape });
            }
        }
        Ok(())
    }

    /// Bytes of the box in a section.
    pub(crate) const fn bytes(&self) -> usize {
        8 + 16 * self.axes.len()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let axes = u8::try_from(self.axes.len()).expect("at most MAX_AXES axes");
        out.extend([axes, 0, 0, 0, 0, 0, 0, 0]);
        for value in self.origin().chain(self.extent()) {
            out.extend(value.to_le_bytes());
        }
    }

    /// The box at the front of `bytes`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let cut = |needed: usize| CodecError::Cut {
            what: "a box",
            found: bytes.len() as u64,
            needed: needed as u64,
        };
        let ([axes, reserved @ ..], rest) = bytes.split_first_chunk::<8>().ok_or_else(|| cut(8))?;
        if *reserved != [0; 7] {
            return Err(CodecError::NotZero { what: "reserved part of the box" });
        }
        let axes = usize::from(*axes);
        check_axes(axes)?;
        let values = rest.get(..16 * axes).ok_or_else(|| cut(8 + 16 * axes))?.as_chunks().0;
        let (origin, extent) = values.split_at(axes);
        let value = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        Self::of(origin.iter().zip(extent).map(|(o, e)| (value(o), value(e))).collect())
    }
}

const fn check_axes(found: usize) -> Result<(), CodecError> {
    if found > MAX_AXES {
        return Err(CodecError::TooMany {
            what: "axes of a box",
            found: found as u64,
            most: MAX_AXES as u64,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_none_can_have_are_refused() {
        assert_eq!(
            CanonicalBox::new(&[0, 5], &[2, 0]).unwrap_err().to_string(),
            "the box's axis 1 begins at 5 and has 0 elements, which no box can have"
        );
        assert!(CanonicalBox::new(&[u64::MAX], &[1]).is_err());
        assert!(CanonicalBox::new(&[0, 0], &[1 << 32, 1 << 32]).is_err());
        assert!(CanonicalBox::new(&[0], &[1, 1]).is_err());
        assert_eq!(
            CanonicalBox::whole(&[1; 9]).unwrap_err().to_string(),
            "the number of axes of a box is 9, expected at most 8"
        );
        assert_eq!(CanonicalBox::whole(&[]).unwrap().volume(), 1);
    }

    #[test]
    fn a_box_lies_in_its_parameter() {
        let area = CanonicalBox::new(&[1, 2], &[3, 4]).unwrap();
        assert_eq!(area.check_within(&[4, 6]), Ok(()));
        assert_eq!(
            area.check_within(&[4, 5]).unwrap_err().to_string(),
            "the box's axis 1 ends at 6, expected at most 5"
        );
        assert_eq!(area.check_within(&[24]).unwrap_err().to_string(), "the number of axes is 2, expected 1");
    }

    #[test]
    fn pieces_follow_each_other_in_row_major_order() {
        let shape = [3, 5, 4];
        let whole = CanonicalBox::new(&[1, 0, 2], &shape).unwrap();
        for most in 1..=70 {
            let pieces = whole.cut(most);
            assert!(pieces.iter().all(|piece| piece.volume() <= most));
            let flat = |o: &[u64], i: &[u64]| ((o[0] - 1 + i[0]) * 5 + o[1] + i[1]) * 4 + o[2] - 2 + i[2];
            let indices = pieces.iter().flat_map(|piece| {
                let (o, e): (Vec<_>, Vec<_>) = (piece.origin().collect(), piece.extent().collect());
                (0..piece.volume()).map(move |i| flat(&o, &[i / (e[1] * e[2]), i / e[2] % e[1], i % e[2]]))
            });
            assert!(indices.eq(0..60), "at most {most}");
        }
        assert_eq!(whole.cut(20).len(), 3);
        assert_eq!(CanonicalBox::whole(&[]).unwrap().cut(1).len(), 1);
    }

    #[test]
    fn boxes_come_back() {
        let area = CanonicalBox::new(&[1, 2, 3], &[4, 5, 6]).unwrap();
        let mut bytes = Vec::new();
        area.write(&mut bytes);
        assert_eq!(bytes.len(), area.bytes());
        assert_eq!(bytes[..16], [3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(CanonicalBox::read(&bytes), Ok(area));
        for length in 0..bytes.len() {
            assert!(CanonicalBox::read(&bytes[..length]).is_err());
        }
        bytes[0] = 255;
        assert!(CanonicalBox::read(&bytes).is_err());
        (bytes[0], bytes[7]) = (3, 1);
        assert!(CanonicalBox::read(&bytes).is_err());
    }
}
