//! Planes of bits: each begins at a byte, bits fill bytes from the least significant, the rest of the last is zero.

/// Bytes of a plane of `bits` bits.
pub(crate) const fn plane_bytes(bits: u64) -> u64 {
    bits.div_ceil(8)
}

/// Appends the bits of one plane.
pub(crate) struct PlaneWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Bits that do not fill a byte yet, and more while bits are being put.
    pending: u64,
    pending_bits: u32,
}

impl<'a> PlaneWriter<'a> {
    pub(crate) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, pending: 0, pending_bits: 0 }
    }

    /// Puts the low `width` bits of a value that has no others, at most 32.
    pub(crate) fn put(&mut self, value: u32, width: u32) {
        debug_assert!(width <= 32 && u64::from(value) < 1 << width, "{value} in {width} bits");
        // At most 7 bits are pending here.
        self.pending |= u64::from(value) << self.pending_bits;
        self.pending_bits += width;
        while self.pending_bits >= 8 {
            self.put_byte();
            self.pending_bits -= 8;
        }
    }

    /// Puts as many zeros, then a one.
    pub(crate) fn put_unary(&mut self, zeros: u32) {
        for _ in 0..zeros / 16 {
            self.put(0, 16);
        }
        let rest = zeros % 16;
        self.put(1 << rest, rest + 1);
    }

    /// Fills the last byte with zeros.
    pub(crate) fn finish(mut self) {
        if self.pending_bits > 0 {
            self.put_byte();
        }
    }

    fn put_byte(&mut self) {
        self.out.push(self.pending.to_le_bytes()[0]);
        self.pending >>= 8;
    }
}

/// The `width` bits from bit `first` of a plane on, at most 20; zeros past its end.
pub(crate) fn bits_at(plane: &[u8], first: u64, width: u32) -> u32 {
    let byte = usize::try_from(first / 8).unwrap_or(usize::MAX);
    let word = plane.get(byte..).map_or(0, |rest| match rest.first_chunk::<4>() {
        Some(word) => u32::from_le_bytes(*word),
        None => (0..).zip(rest).map(|(i, &byte)| u32::from(byte) << (8 * i)).sum(),
    });
    word >> (first % 8) & ((1 << width) - 1)
}

/// Whether the bits of a plane's last byte from `bits` on are zero; the plane has [`plane_bytes`] bytes.
pub(crate) fn is_padded(plane: &[u8], bits: u64) -> bool {
    let used = bits % 8;
    used == 0 || plane.last().is_none_or(|&last| last >> used == 0)
}

/// The places of the ones of a plane, in order.
pub(crate) fn ones(plane: &[u8]) -> impl Iterator<Item = u64> {
    let words = plane.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    (0_u64..).zip(words).flat_map(|(index, word)| {
        let rest =
            std::iter::successors(Some(word), |word| Some(word & (word - 1))).take_while(|&word| word != 0);
        rest.map(move |word| 64 * index + u64::from(word.trailing_zeros()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_in_order() {
        let mut out = vec![9];
        let mut plane = PlaneWriter::new(&mut out);
        let values = [(5, 3), (0, 0), (1 << 19, 20), (1, 1), (0x3ff, 10), (0, 7)];
        for (value, width) in values {
            plane.put(value, width);
        }
        plane.finish();
        assert_eq!(out.len() as u64, 1 + plane_bytes(41));
        let mut at = 0;
        for (value, width) in values {
            assert_eq!(bits_at(&out[1..], at, width), value);
            at += u64::from(width);
        }
        assert!(is_padded(&out[1..], at));
        assert_eq!(bits_at(&out, 1 << 40, 20), 0);
    }

    #[test]
    fn ones_lie_where_they_were_put() {
        let gaps = [0, 0, 7, 63, 64, 65, 200, 0];
        let mut out = Vec::new();
        let mut plane = PlaneWriter::new(&mut out);
        gaps.into_iter().for_each(|gap| plane.put_unary(gap));
        plane.finish();
        let mut next = 0;
        let wanted = gaps.map(|gap| {
            next += u64::from(gap) + 1;
            next - 1
        });
        assert!(ones(&out).eq(wanted));
        assert_eq!(out.len() as u64, plane_bytes(next));
        assert_eq!(ones(&[]).count() + ones(&[0; 9]).count(), 0);
    }
}
