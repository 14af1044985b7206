//! One TLS provider, chosen before anything dials.

use driftless_store::{StoreError, StoreOptions, StreamUrl, open};
use driftless_types::Seq;

/// Packages that bring another provider than ring, or another TLS than rustls.
const OTHERS: [&str; 9] = [
    "aws-lc-fips-sys",
    "aws-lc-rs",
    "aws-lc-sys",
    "boring",
    "boring-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "rustls-openssl",
];

fn packages(lock_file: &str) -> Vec<&str> {
    let names = lock_file.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    names.collect()
}

#[test]
fn ring_is_the_only_tls_provider_in_the_lock_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
    let lock_file = std::fs::read_to_string(path).expect("the workspace has a lock file");
    let packages = packages(&lock_file);
    let others: Vec<_> = packages.iter().filter(|name| OTHERS.contains(name)).collect();
    assert_eq!(others, Vec::<&&str>::new(), "a second TLS provider: find who asks with `cargo tree -i NAME`");
    for single in ["ring", "rustls"] {
        let count = packages.iter().filter(|name| **name == single).count();
        assert_eq!(count, 1, "versions of {single}");
    }
}

#[test]
fn another_provider_would_be_found() {
    let found =
        packages("[[package]]\nname = \"aws-lc-rs\"\nversion = \"1\"\n\n[[package]]\nname = \"ring\"\n");
    assert_eq!(found, ["aws-lc-rs", "ring"]);
}

/// Without a provider the client could not even be built.
#[tokio::test]
async fn a_dial_with_tls_reaches_the_network() {
    // A port that was free a moment ago: nobody answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    drop(listener);
    let url: StreamUrl = format!("https://{address}/stream").parse().expect("an address");
    let options = StoreOptions { attempts: 1, ..StoreOptions::default() };
    let stream = open(&url, &options).expect("a client with TLS");
    let refused = stream.tail(Seq(0)).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    let provider = rustls::crypto::CryptoProvider::get_default().expect("a provider is installed");
    assert!(format!("{provider:?}").contains("Ring"), "{provider:?}");
}
