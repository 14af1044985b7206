//! The kernels of `kernels/`, part of the program: their sources for NVRTC, and PTX for machines without it.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// No PTX of one kernel is longer, in bytes.
const PTX_BYTES_MAX: usize = 4 << 20;

/// A file of kernels.
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [Kernel],
}

/// A kernel and its PTX for the oldest architecture, compressed.
pub(super) struct Kernel {
    pub(super) name: &'static str,
    ptx: &'static [u8],
}

impl Kernel {
    /// The PTX as the driver reads it, with a zero byte at its end.
    pub(super) fn ptx(&self) -> Result<Vec<u8>, String> {
        let ptx = decompress_to_vec_zlib_with_limit(self.ptx, PTX_BYTES_MAX);
        let mut ptx = ptx.map_err(|error| format!("the PTX of {}: {error}", self.name))?;
        ptx.push(0);
        Ok(ptx)
    }
}

/// What the files include, by name.
pub(super) const HEADERS: [(&str, &str); 13] = [
    ("abi.cuh", include_str!("../../../../kernels/include/abi.cuh")),
    ("bf16.cuh", include_str!("../../../../kernels/include/bf16.cuh")),
    ("box.cuh", include_str!("../../../../kernels/include/box.cuh")),
    ("detect_digest.cuh", include_str!("../../../../kernels/include/detect_digest.cuh")),
    ("detect_judges.cuh", include_str!("../../../../kernels/include/detect_judges.cuh")),
    ("detect_list.cuh", include_str!("../../../../kernels/include/detect_list.cuh")),
    ("detect_tile.cuh", include_str!("../../../../kernels/include/detect_tile.cuh")),
    ("digest.cuh", include_str!("../../../../kernels/include/digest.cuh")),
    ("rule.cuh", include_str!("../../../../kernels/include/rule.cuh")),
    ("scan.cuh", include_str!("../../../../kernels/include/scan.cuh")),
    ("search.cuh", include_str!("../../../../kernels/include/search.cuh")),
    ("threads.cuh", include_str!("../../../../kernels/include/threads.cuh")),
    ("types.cuh", include_str!("../../../../kernels/include/types.cuh")),
];

/// All files.
pub(super) const FILES: [File; 7] = [
    File {
        name: "block16.cu",
        source: include_str!("../../../../kernels/block16.cu"),
        kernels: &[
            Kernel {
                name: "driftless_block16_decode",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_block16_decode.ptx.z"),
            },
            Kernel {
                name: "driftless_block16_directory",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_block16_directory.ptx.z"),
            },
            Kernel {
                name: "driftless_block16_encode",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_block16_encode.ptx.z"),
            },
        ],
    },
    File {
        name: "detect.cu",
        source: include_str!("../../../../kernels/detect.cu"),
        kernels: &[
            Kernel {
                name: "driftless_detect_agnostic",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_agnostic.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_apex",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_apex.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_bitsandbytes",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_bitsandbytes.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_compare",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_compare.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_deepspeed_cpu",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_deepspeed_cpu.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_marked",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_marked.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_rest",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_rest.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_sgd",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_sgd.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_sgd_half_away",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_sgd_half_away.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_te_remainder",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_te_remainder.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_torch",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_torch.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_torch_fused_cuda",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_torch_fused_cuda.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_undecayed",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_undecayed.ptx.z"),
            },
            Kernel {
                name: "driftless_detect_undecayed_half_away",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_detect_undecayed_half_away.ptx.z"),
            },
        ],
    },
    File {
        name: "digest.cu",
        source: include_str!("../../../../kernels/digest.cu"),
        kernels: &[Kernel {
            name: "driftless_rehash",
            ptx: include_bytes!("../../../../kernels/ptx/driftless_rehash.ptx.z"),
        }],
    },
    File {
        name: "gather.cu",
        source: include_str!("../../../../kernels/gather.cu"),
        kernels: &[Kernel {
            name: "driftless_gather",
            ptx: include_bytes!("../../../../kernels/ptx/driftless_gather.ptx.z"),
        }],
    },
    File {
        name: "pending.cu",
        source: include_str!("../../../../kernels/pending.cu"),
        kernels: &[
            Kernel {
                name: "driftless_count_bits",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_count_bits.ptx.z"),
            },
            Kernel {
                name: "driftless_fill_bits",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_fill_bits.ptx.z"),
            },
            Kernel {
                name: "driftless_mark",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_mark.ptx.z"),
            },
            Kernel {
                name: "driftless_put",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_put.ptx.z"),
            },
        ],
    },
    File {
        name: "remap.cu",
        source: include_str!("../../../../kernels/remap.cu"),
        kernels: &[
            Kernel {
                name: "driftless_remap",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_remap.ptx.z"),
            },
            Kernel {
                name: "driftless_remap_plan",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_remap_plan.ptx.z"),
            },
        ],
    },
    File {
        name: "scatter.cu",
        source: include_str!("../../../../kernels/scatter.cu"),
        kernels: &[
            Kernel {
                name: "driftless_peek",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_peek.ptx.z"),
            },
            Kernel {
                name: "driftless_scatter",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_scatter.ptx.z"),
            },
            Kernel {
                name: "driftless_scatter_all",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_scatter_all.ptx.z"),
            },
            Kernel {
                name: "driftless_scatter_check",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_scatter_check.ptx.z"),
            },
            Kernel {
                name: "driftless_undo",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_undo.ptx.z"),
            },
            Kernel {
                name: "driftless_undo_all",
                ptx: include_bytes!("../../../../kernels/ptx/driftless_undo_all.ptx.z"),
            },
        ],
    },
];

/// The names of all kernels, in the order of their files.
pub fn kernel_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().flat_map(|file| file.kernels).map(|kernel| kernel.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a: simple enough for the script that writes it too.
    fn digest(parts: impl Iterator<Item = &'static str>) -> u64 {
        let bytes = parts.flat_map(|part| part.bytes().chain([0]));
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn the_checked_in_ptx_is_that_of_the_sources() {
        let files = FILES.iter().map(|file| (file.name, file.source));
        let found = digest(HEADERS.iter().copied().chain(files).flat_map(|(name, text)| [name, text]));
        let expected = include_str!("../../../../kernels/ptx/SOURCES").trim();
        assert_eq!(format!("{found:016x}"), expected, "run kernels/compile.py --write");
    }

    #[test]
    fn every_kernel_has_ptx_of_its_name() {
        for kernel in FILES.iter().flat_map(|file| file.kernels) {
            let ptx = String::from_utf8(kernel.ptx().expect("zlib")).expect("text");
            assert!(ptx.contains(&format!(".visible .entry {}(", kernel.name)), "{}", kernel.name);
            assert!(ptx.contains(".target sm_80"), "{}", kernel.name);
            // Flushing subnormals or approximating changes bits.
            assert!(!ptx.contains(".ftz") && !ptx.contains(".approx"), "{}", kernel.name);
        }
    }
}
