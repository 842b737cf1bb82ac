//! Files that only the user of this process may read: the ledger, its spill files, and the files that the
//! server keeps in its data directory.
//!
//! They hold usage, names of tenants and names of operators. Another user of the machine must not read them,
//! and must not use a symbolic link to make the process write to another file.

#[cfg(any(feature = "sqlite", test))]
use std::fs;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a file. A new file gets the mode 0600. An existing file keeps its mode.
///
/// # Errors
/// If `options` do not permit it, or if the path is a symbolic link.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let opened = options.mode(0o600).custom_flags(no_follow).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => is_link(),
        _ => error,
    })
}

/// Creates a directory with the mode 0700, and the directories above it. Existing directories keep their
/// modes.
///
/// # Errors
/// If the system does not permit it.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates an empty file with the mode 0600, unless there is one. An existing file is not opened: when a
/// process closes a SQLite file, it loses the locks that its other connections have on the file.
///
/// # Errors
/// If the system does not permit it, or if the path is a symbolic link.
#[cfg(any(feature = "sqlite", test))]
pub(crate) fn create(path: &Path) -> io::Result<()> {
    match open(OpenOptions::new().write(true).create_new(true), path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created.map(drop),
    }
    reject_link(path)
}

/// Returns an error if the path is a symbolic link.
///
/// # Errors
/// If the path is a symbolic link, or cannot be checked.
#[cfg(any(feature = "sqlite", test))]
pub(crate) fn reject_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Err(is_link()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_link() -> io::Error {
    io::Error::other("the path is a symbolic link: use the path that it points to")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn new_files_and_directories_are_private() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/b");
        create_directory(&directory).unwrap();
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&home.path().join("a")), 0o700);
        create_directory(&directory).unwrap();
        let file = directory.join("file");
        open(OpenOptions::new().append(true).create(true), &file).unwrap();
        assert_eq!(mode(&file), 0o600);
        let other = directory.join("other");
        create(&other).unwrap();
        assert_eq!(mode(&other), 0o600);
    }

    #[test]
    fn existing_file_keeps_its_mode() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        create(&file).unwrap();
        open(OpenOptions::new().append(true).create(true), &file).unwrap();
        assert_eq!(mode(&file), 0o640);
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    }

    #[test]
    fn links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (target, link) = (home.path().join("target"), home.path().join("link"));
        symlink(&target, &link).unwrap();
        for missing in [true, false] {
            let opened = open(OpenOptions::new().append(true).create(true), &link);
            assert!(opened.unwrap_err().to_string().contains("symbolic link"));
            assert!(
                create(&link)
                    .unwrap_err()
                    .to_string()
                    .contains("symbolic link")
            );
            assert_eq!(target.exists(), !missing);
            fs::write(&target, "").unwrap();
        }
    }
}
