//! Streams of a test, and processes of the program.

use driftless_store::conformance::s3;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The recorded versions of both golden folders.
pub(crate) const VERSIONS: [u64; 3] = [6, 7, 8];
/// The last of them.
pub(crate) const LAST: u64 = 8;

/// A folder of golden vectors in the source tree.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// The recorded policy of a version.
pub(crate) fn policy(folder: &Path, version: u64) -> PathBuf {
    folder.join(format!("policy-step-{version:04}.safetensors"))
}

/// The address of a new stream, and a folder for whatever else a test keeps.
pub(crate) struct Home {
    folder: TempDir,
    url: String,
}

impl Home {
    /// On the local disk.
    pub(crate) fn on_disk() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("file://{}", folder.path().join("stream").display());
        Self { folder, url }
    }

    /// On a real S3 server, if there is one.
    pub(crate) fn on_s3() -> Option<Self> {
        let url = s3()?.to_string();
        Some(Self { folder: tempfile::tempdir().expect("a temporary folder"), url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A path beside the stream.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The files of a stream on the local disk below one of its folders.
    pub(crate) fn files(&self, below: &str) -> Vec<PathBuf> {
        let (mut folders, mut files) = (vec![self.path("stream").join(below)], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder of the stream") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }

    /// `publish` of a folder's recorded steps.
    pub(crate) fn publish(&self, dir: &Path, trainer: &str) -> Program {
        Program::new("publish").arg(text(dir)).args(["--trainer", trainer, "--to", self.url()])
    }

    /// `follow` into a folder of this home.
    pub(crate) fn follow(&self, rollout: &str, out: &str) -> Program {
        Program::new("follow").args([self.url(), "--rollout", rollout, "--out", text(&self.path(out))])
    }

    /// The reader's state in a folder of this home.
    pub(crate) fn state(&self, out: &str) -> Value {
        let text = fs::read(self.path(out).join("state.json")).expect("the reader's state");
        serde_json::from_slice(&text).expect("JSON")
    }
}

/// Publishes the recorded policy of a version as a checkpoint.
pub(crate) fn publish_checkpoint(home: &Home, name: &str, version: u64, as_version: u64) -> Program {
    let folder = golden(name);
    let (file, config) = (policy(&folder, version), folder.join("config.json"));
    Program::new("publish")
        .args(["--from-checkpoint", text(&file), "--model", text(&config), "--to", home.url()])
        .args(["--version", &as_version.to_string()])
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test folders have plain names")
}

/// One run of the program, not yet begun.
pub(crate) struct Program(Command);

impl Program {
    pub(crate) fn new(command: &str) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_driftless"));
        program.arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(program)
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.0.arg(arg);
        self
    }

    pub(crate) fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(args);
        self
    }

    pub(crate) fn env(mut self, (name, value): (&str, &str)) -> Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn start(mut self) -> Started {
        Started(self.0.spawn().expect("the program starts"))
    }

    /// Runs to the end.
    pub(crate) fn run(self) -> Run {
        self.start().end()
    }

    /// Runs to the end, which must be a good one.
    pub(crate) fn succeed(self) -> Run {
        let run = self.run();
        assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
        run
    }

    /// Runs, dies at the failpoint that it was given or not, and is run again until it ends well.
    pub(crate) fn until_it_succeeds(again: impl Fn() -> Self) -> Run {
        for _ in 0..20 {
            let run = again().run();
            if run.code == Some(0) {
                return run;
            }
            let is_early = run.stderr.contains("no stream begins here");
            assert!(run.is_killed() || is_early, "{:?} {}{}", run.code, run.stdout, run.stderr);
        }
        unreachable!("it is not killed so often")
    }
}

/// A process.
pub(crate) struct Started(Child);

impl Started {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn kill(&self) {
        // It may have ended already.
        let _ = kill_process(self.pid(), Signal::KILL);
    }

    /// Waits until the process has stopped itself.
    pub(crate) fn stopped(&self) {
        let status = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("a child");
        let (_, status) = status.expect("it is waited for");
        assert!(status.stopped(), "it ended instead");
    }

    pub(crate) fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the process is there");
    }

    pub(crate) fn end(self) -> Run {
        let output = self.0.wait_with_output().expect("the process ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints UTF-8");
        let (code, signal) = (output.status.code(), output.status.signal());
        Run { code, signal, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// How a process ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn is_killed(&self) -> bool {
        self.signal == Some(Signal::KILL.as_raw())
    }

    /// Standard output as JSON.
    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("standard output carries JSON and nothing else")
    }

    /// The one line that says why the run failed.
    pub(crate) fn error(&self) -> &str {
        let mut errors = self.stderr.lines().filter(|line| line.starts_with("error: "));
        let error = errors.next().unwrap_or_default();
        assert_eq!(errors.next(), None, "one error, not several: {}", self.stderr);
        error
    }
}

/// `SplitMix64`: one seed, one choice of what dies when.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
