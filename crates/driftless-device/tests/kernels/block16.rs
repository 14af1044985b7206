//! `block16` sections, against the codec.

use crate::abi::{Block16Args, FAULT_DIRECTORY, FAULT_NOT_RISING, FAULT_OUT_OF_RANGE};
use crate::shim::{BLOCK_SIZES, Grid, launch};
use crate::support::Rng;
use bytes::Bytes;
use driftless_codec::{HEADER_BYTES, Section, SectionStart, encode_section};
use driftless_types::{ChangeSet, Dtype, Version};

const ELEMENTS: u64 = 1 << 16;

/// A section as the codec writes it.
fn section(n: u64, positions: &[u32], values: &[u16]) -> Vec<u8> {
    let start = SectionStart::new(0, Dtype::Bf16, n, Version(1));
    let changes = ChangeSet::Sparse { positions: positions.to_vec(), values: values.to_vec() };
    let mut out = Vec::new();
    encode_section(&start, &changes, &mut out);
    out
}

/// Directory and blocks of a section, aligned as on a device.
fn body_of(section: &[u8], n: u64, nnz: u64) -> Vec<u32> {
    let bytes = (4 * (n.div_ceil(ELEMENTS) + 1 + nnz)) as usize;
    let body = &section[HEADER_BYTES..HEADER_BYTES + bytes];
    body.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

fn sorted(n: u64, every: u64, rng: &mut Rng) -> (Vec<u32>, Vec<u16>) {
    // The second block of elements has no changes.
    let is_in = |position: u32, rng: &mut Rng| position >> 16 != 1 && rng.below(every) == 0;
    let positions: Vec<u32> = (0..n as u32).filter(|&position| is_in(position, rng)).collect();
    let values = positions.iter().map(|_| rng.word()).collect();
    (positions, values)
}

struct Decoded {
    fault: u32,
    positions: Vec<u32>,
    values: Vec<u16>,
}

fn decode(grid: Grid, body: &mut [u32], n: u64, nnz: u64) -> Decoded {
    let mut decoded = Decoded {
        fault: 0,
        positions: vec![u32::MAX; nnz as usize + 1],
        values: vec![0xabcd; nnz as usize + 1],
    };
    let args = Block16Args {
        body: body.as_mut_ptr().cast(),
        positions: decoded.positions.as_mut_ptr(),
        values: decoded.values.as_mut_ptr(),
        fault: &raw mut decoded.fault,
        n,
        nnz,
    };
    launch("driftless_block16_decode", grid, &args);
    assert_eq!((decoded.positions.pop(), decoded.values.pop()), (Some(u32::MAX), Some(0xabcd)));
    decoded
}

#[test]
fn block16_bodies_are_decoded_and_encoded_as_the_codec_does() {
    let mut rng = Rng(91);
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        let grid = Grid::new(threads, seed);
        for (n, every) in [(9, 6), (300, 5), (ELEMENTS, 30), (2 * ELEMENTS + 1, 4), (3 * ELEMENTS + 77, 100)]
        {
            let (mut positions, mut values) = sorted(n, every, &mut rng);
            let nnz = positions.len() as u64;
            assert!(nnz > 0 || n < 10);
            if nnz == 0 {
                continue;
            }
            let bytes = section(n, &positions, &values);
            let parsed = Section::parse_any(&mut Bytes::from(bytes.clone())).expect("the codec reads itself");
            assert!(
                matches!(parsed.changes(), ChangeSet::Sparse { .. }),
                "{n} {every} is no block16 section"
            );
            let mut body = body_of(&bytes, n, nnz);
            let decoded = decode(grid, &mut body, n, nnz);
            assert_eq!(decoded.fault, 0);
            assert_eq!((&decoded.positions, &decoded.values), (&positions, &values));
            let mut written = vec![0xdead_beef_u32; body.len()];
            let args = Block16Args {
                body: written.as_mut_ptr().cast(),
                positions: positions.as_mut_ptr(),
                values: values.as_mut_ptr(),
                fault: std::ptr::null_mut(),
                n,
                nnz,
            };
            launch("driftless_block16_directory", grid, &args);
            launch("driftless_block16_encode", grid, &args);
            assert_eq!(written, body, "{n} {every} {grid:?}");
        }
    }
}

/// What makes a body hostile.
type Breakage<'a> = &'a dyn Fn(&mut Vec<u32>);

#[test]
fn hostile_bodies_are_faults_and_touch_nothing_outside() {
    let (n, mut rng) = (2 * ELEMENTS + 500, Rng(101));
    let (positions, values) = sorted(n, 50, &mut rng);
    let nnz = positions.len() as u64;
    let good = body_of(&section(n, &positions, &values), n, nnz);
    let offsets = 4;
    // The first offset a second time.
    let twice = |body: &mut Vec<u32>| body[offsets] = (body[offsets] & 0xffff) * 0x1_0001;
    let swap = |body: &mut Vec<u32>| body[offsets] = body[offsets].rotate_left(16);
    let cases: [(Breakage<'_>, u32); 9] = [
        (&swap, FAULT_NOT_RISING),
        (&twice, FAULT_NOT_RISING),
        (&|body| body[0] = 1, FAULT_DIRECTORY),
        (&|body| body[1] = u32::MAX, FAULT_DIRECTORY),
        (&|body| body[2] = body[1] - 1, FAULT_DIRECTORY),
        (&|body| body[3] += 1, FAULT_DIRECTORY),
        (&|body| body[3] -= 1, FAULT_DIRECTORY),
        (&|body| body[1] = body[3], FAULT_DIRECTORY),
        // One change more than there is room for: the next block says that it is wrong, and it would be too late.
        (&|body| body[1] = body[3] + 1, FAULT_DIRECTORY),
    ];
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        for (number, (break_it, fault)) in cases.iter().enumerate() {
            let mut body = good.clone();
            break_it(&mut body);
            let decoded = decode(Grid::new(threads, seed), &mut body, n, nnz);
            assert_eq!(decoded.fault, *fault, "case {number}");
        }
        // The last block has 500 elements; its last offset is the last of the offsets.
        let mut body = good.clone();
        let first = body[2] as usize;
        let count = body[3] as usize - first;
        let last = 2 * (offsets + first) + count - 1;
        let halves: &mut [u16] = {
            // SAFETY: the same memory as halves.
            unsafe { std::slice::from_raw_parts_mut(body.as_mut_ptr().cast(), 2 * body.len()) }
        };
        halves[last] = 500;
        assert_eq!(decode(Grid::new(threads, seed), &mut body, n, nnz).fault, FAULT_OUT_OF_RANGE);
        // Nothing but noise.
        let mut noise: Vec<u32> = good.iter().map(|_| rng.next() as u32).collect();
        assert_ne!(decode(Grid::new(threads, seed), &mut noise, n, nnz).fault, 0);
    }
}
