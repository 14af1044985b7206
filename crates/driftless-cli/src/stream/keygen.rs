//! `driftless keygen`: a pair of keys, and the file by which readers trust it.

use crate::args::KeygenArgs;
use crate::console::Lines;
use crate::failure::Failure;
use driftless::log::{Role, SecretKey, TrustedKeys};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Makes a key; an existing file is never replaced.
pub(crate) fn keygen(args: &KeygenArgs) -> Result<(), Failure> {
    let seed = random_seed().map_err(|source| not_written(&args.key, source))?;
    let key = SecretKey::from_seed(&seed);
    let trusted = TrustedKeys::new(key.public(), Role::Publisher);
    if args.trust.exists() {
        return Err(not_written(&args.trust, io::ErrorKind::AlreadyExists.into()));
    }
    write_new(&args.key, &key.print_file()).map_err(|source| not_written(&args.key, source))?;
    if let Err(source) = write_new(&args.trust, &trusted.print_file()) {
        // A pair of which one half is missing is of no use.
        let _ = fs::remove_file(&args.key);
        return Err(not_written(&args.trust, source));
    }
    Lines::Stdout.write(&format!("key {} in {} (keep it secret)", key.public().id(), args.key.display()));
    Lines::Stdout.write(&format!("readers trust it by --trust {}", args.trust.display()));
    Ok(())
}

/// From the operating system's generator.
fn random_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(io::Error::from)?;
    Ok(seed)
}

/// Private to its owner, and only if nothing is there.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn not_written(path: &Path, source: io::Error) -> Failure {
    Failure::Write { path: path.display().to_string(), source }
}
