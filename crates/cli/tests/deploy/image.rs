//! Builds the image from the program under test, without a registry. The base of the last stage but one is made of
//! programs of this machine, and the stage that compiles is replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{copy_program, output, run, tollgate};

/// The programs that the container file runs after the compilation.
const PROGRAMS: [&str; 5] = ["bash", "chmod", "grep", "install", "ldd"];
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
const BASE: &str = "localhost/base";

/// A storage of images and containers, removed when dropped.
pub(crate) struct Images {
    folder: tempfile::TempDir,
}

impl Images {
    pub(crate) const NAME: &str = "localhost/tollgate";

    pub(crate) fn build(file: &Path) -> Images {
        let images = Images {
            folder: tempfile::tempdir().unwrap(),
        };
        let context = images.folder.path().join("context");
        fs::create_dir_all(context.join("base")).unwrap();
        fill(&context.join("base"));
        fs::write(context.join("Base"), "FROM scratch\nCOPY base /\n").unwrap();
        let mut base = images.buildah(&["--tag", BASE]);
        run(base.arg("--file").arg(context.join("Base")).arg(&context));

        let program = context.join("program");
        fs::create_dir_all(&program).unwrap();
        copy_program(&program);
        // An empty context is enough: only the stage that compiles uses it.
        let empty = context.join("empty");
        fs::create_dir_all(&empty).unwrap();
        let mut build = images.buildah(&["--tag", Images::NAME]);
        build.arg(format!("--build-arg=BUILD_IMAGE={BASE}"));
        build.arg(format!("--build-context=program={}", program.display()));
        run(build.arg("--file").arg(file).arg(&empty));
        images
    }

    /// Returns the description of the image.
    pub(crate) fn inspect(&self) -> Value {
        let mut inspect = self.podman(&["image", "inspect", Images::NAME]);
        let images: Value = serde_json::from_str(&run(&mut inspect)).unwrap();
        images[0].clone()
    }

    fn buildah(&self, arguments: &[&str]) -> Command {
        let mut buildah = Command::new("buildah");
        buildah
            .args(self.storage())
            .args(["build", "--isolation", "chroot"]);
        // The format of Docker has health checks, the one of OCI has none.
        buildah.args(["--format", "docker"]).args(arguments);
        buildah
    }

    /// Returns a call of podman. It works without systemd and with any version of cgroups.
    pub(crate) fn podman(&self, arguments: &[&str]) -> Command {
        let mut podman = Command::new("podman");
        podman.args(self.storage());
        podman.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"]);
        podman.args(["--events-backend", "none"]);
        podman.args(arguments);
        // podman raises limits by default, which not every machine permits.
        if arguments.first() == Some(&"run") {
            podman.args([
                "--ulimit",
                "nofile=1024:1024",
                "--ulimit",
                "nproc=1024:1024",
            ]);
        }
        podman
    }

    fn storage(&self) -> [String; 6] {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let option = str::to_owned;
        [
            option("--root"),
            path("images"),
            option("--runroot"),
            path("run"),
            option("--storage-driver"),
            option("vfs"),
        ]
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = output(&mut self.podman(&["rm", "--force", "--all", "--volumes"]));
    }
}

/// Copies the programs and the libraries that they and the program under test need.
fn fill(base: &Path) {
    for program in PROGRAMS {
        let found = run(Command::new("bash").args(["-c", &format!("command -v {program}")]));
        let found = fs::canonicalize(found.trim()).unwrap();
        copy(&found, &base.join("usr/bin").join(program));
        copy_libraries(&found, base);
    }
    copy_libraries(tollgate(), base);
    std::os::unix::fs::symlink("usr/bin", base.join("bin")).unwrap();
    let authorities = Path::new(AUTHORITIES);
    assert!(
        authorities.is_file(),
        "{AUTHORITIES} is missing\n    install: apt-get install -y ca-certificates"
    );
    copy(authorities, &within(base, authorities));
}

fn copy_libraries(program: &Path, base: &Path) {
    // A script has no libraries, and ldd fails.
    let listed = output(Command::new("ldd").arg(program)).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let libraries = listed.split_whitespace().filter(|it| it.starts_with('/'));
    for library in libraries.map(Path::new) {
        copy(library, &within(base, library));
    }
}

fn within(base: &Path, path: &Path) -> PathBuf {
    base.join(path.strip_prefix("/").unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}
