//! Processes that find the stand-in, and what is said to it in them.

use anyhow::{Context, Result, ensure};
use driftless_testkit::standin_folder;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

const CHILD: &str = "DRIFTLESS_CUDA_TEST";
const CONTROL: &str = "STANDIN_CONTROL";

/// Runs `body` in a process of its own, which finds the stand-in and has these variables; `name` is that of the test,
/// with its modules. It fails if the process does, or is ended by a signal.
///
/// # Errors
/// What the process printed.
pub fn on_standin(name: &str, variables: &[(&str, &str)], body: impl FnOnce() -> Result<()>) -> Result<()> {
    let folder = standin_folder().context("the stand-in needs g++")?;
    let path = folder.to_str().context("a plain path")?;
    let control = folder.join(format!("control-{}-{}", std::process::id(), name.replace("::", "-")));
    if env::var_os(CHILD).is_none() {
        fs::write(&control, Standin::UNTOLD.map(i64::to_ne_bytes).concat())?;
    }
    let told = control.to_str().context("a plain path")?;
    let outcome = in_child(name, &[&[("LD_LIBRARY_PATH", path), (CONTROL, told)], variables].concat(), body);
    let _ = fs::remove_file(control);
    outcome
}

/// Runs `body` in a process of its own with these variables, among them none of the library path that it is not given.
///
/// # Errors
/// What the process printed.
pub fn in_child(name: &str, variables: &[(&str, &str)], body: impl FnOnce() -> Result<()>) -> Result<()> {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let mut command = Command::new(env::current_exe()?);
    command
        .args([name, "--exact", "--nocapture", "--include-ignored"])
        .env_remove("LD_LIBRARY_PATH")
        .env(CHILD, "1");
    let output = command.envs(variables.iter().copied()).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    ensure!(stdout.contains("1 passed"), "{name} is not the name of the test: {stdout}");
    Ok(())
}

/// What a test says to the stand-in of its process and asks of it: the file that `Control` in its source describes.
pub struct Standin {
    control: File,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A launch is refused, with the driver's code for want of resources.
    Launch,
    /// A launch breaks the context.
    BrokenLaunch,
    /// An allocation is refused.
    Allocation,
    /// The device is gone.
    Vanished,
}

impl Standin {
    const OUT_OF_RESOURCES: i64 = 701;
    const LAUNCH_FAILED: i64 = 719;
    /// The file before anybody has said anything.
    const UNTOLD: [i64; 9] = [-1, Self::OUT_OF_RESOURCES, -1, -1, 0, 0, 0, 0, 0];

    /// The stand-in of this process.
    ///
    /// # Errors
    /// Outside of [`on_standin`].
    pub fn find() -> Result<Self> {
        let path = env::var_os(CONTROL).context("this process has no stand-in")?;
        Ok(Self { control: File::options().read(true).write(true).open(path)? })
    }

    /// Asks for a failure, after so many launches, allocations or calls that go well.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn inject(&self, failure: Failure, after: usize) -> Result<()> {
        let after = i64::try_from(after)?;
        match failure {
            Failure::Launch => self.say(1, Self::OUT_OF_RESOURCES).and_then(|()| self.say(0, after)),
            Failure::BrokenLaunch => self.say(1, Self::LAUNCH_FAILED).and_then(|()| self.say(0, after)),
            Failure::Allocation => self.say(2, after),
            Failure::Vanished => self.say(3, after),
        }
    }

    /// Asks that so many pieces of work from now on, on any stream, are done no sooner than somebody waits for them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn hold(&self, pieces: u32) -> Result<()> {
        self.say(8, pieces.into())
    }

    /// Bytes of device memory that are allocated now.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn live_bytes(&self) -> Result<u64> {
        self.ask(4)
    }

    /// The most that were, since the peak was reset.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn peak_bytes(&self) -> Result<u64> {
        self.ask(5)
    }

    /// Bytes of host memory that are pinned now.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn pinned_bytes(&self) -> Result<u64> {
        self.ask(6)
    }

    /// How many kernels were launched.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn launches(&self) -> Result<u64> {
        self.ask(7)
    }

    /// The peak is what is allocated now.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn reset_peak(&self) -> Result<()> {
        self.say(5, i64::try_from(self.live_bytes()?)?)
    }

    fn say(&self, word: u64, value: i64) -> Result<()> {
        Ok(self.control.write_all_at(&value.to_ne_bytes(), 8 * word)?)
    }

    fn ask(&self, word: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, 8 * word)?;
        Ok(u64::try_from(i64::from_ne_bytes(bytes))?)
    }
}
