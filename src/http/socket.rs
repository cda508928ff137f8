//! What a server accepts connections on: an address of the network, or a socket in the file system.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// Who calls over a socket in the file system is on this machine.
const THIS_MACHINE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Nobody but the process's user opens it.
const MODE: u32 = 0o600;

/// A connection that was accepted.
pub type Connection = Either<TcpStream, UnixStream>;

/// Accepts connections.
pub enum ServerSocket {
    /// Of the network.
    Network(TcpListener),
    /// In the file system.
    Local(LocalSocket),
}

impl From<TcpListener> for ServerSocket {
    fn from(listener: TcpListener) -> Self {
        Self::Network(listener)
    }
}

impl ServerSocket {
    /// The next connection, and where it comes from: 127.0.0.1 for a socket in the file system.
    ///
    /// # Errors
    /// As `accept(2)`.
    pub async fn accept(&self) -> io::Result<(Connection, SocketAddr)> {
        match self {
            Self::Network(listener) => {
                let (stream, peer) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                Ok((Either::Left(stream), peer))
            }
            Self::Local(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                Ok((Either::Right(stream), THIS_MACHINE))
            }
        }
    }
}

/// A socket in the file system; removed when it is dropped.
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: a socket that another process has put in its place is left alone.
    identity: (u64, u64),
}

impl LocalSocket {
    /// Listens at a path, where a process that was killed may have left a socket behind.
    ///
    /// # Errors
    /// When another process listens there, something else than a socket is there, or the folder cannot be written.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        Self::check(path)?;
        let shown = path.display();
        // It is made where nobody else can reach it, so that it never has another mode than its own.
        let mut folder = path.as_os_str().to_owned();
        folder.push(".new");
        let folder = PathBuf::from(folder);
        let made = folder.join("s");
        let listen = || -> io::Result<(UnixListener, (u64, u64))> {
            let _ = fs::remove_dir_all(&folder);
            fs::DirBuilder::new().mode(0o700).create(&folder)?;
            let listener = UnixListener::bind(&made)?;
            fs::set_permissions(&made, fs::Permissions::from_mode(MODE))?;
            fs::rename(&made, path)?;
            let found = fs::symlink_metadata(path)?;
            Ok((listener, (found.dev(), found.ino())))
        };
        let listening = listen();
        let _ = fs::remove_dir_all(&folder);
        let (listener, identity) = listening.with_context(|| {
            format!("cannot listen on {shown}; choose another path, in a folder that this process can write to")
        })?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity,
        })
    }

    /// Whether a socket can take this place: nothing is there, or what a process has left behind.
    ///
    /// # Errors
    /// When another process listens there, or something else than a socket is there.
    pub fn check(path: &Path) -> anyhow::Result<()> {
        let Ok(found) = fs::symlink_metadata(path) else {
            return Ok(());
        };
        let shown = path.display();
        ensure!(
            found.file_type().is_socket(),
            "{shown} is there and is not a socket; name another path, or remove it"
        );
        ensure!(
            std::os::unix::net::UnixStream::connect(path).is_err(),
            "another process listens on {shown}; stop it, or name another path"
        );
        Ok(())
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket__should_be_open_to_this_user_alone_and_leave_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let socket = LocalSocket::bind(&path).expect("listens");
        let mode = fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o777, MODE);
        let entries = || fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(entries(), 1, "only the socket");
        let problem = LocalSocket::bind(&path).err().expect("in use").to_string();
        assert!(problem.contains("another process listens on"), "{problem}");
        let socket = ServerSocket::Local(socket);
        let (called, accepted) = tokio::join!(UnixStream::connect(&path), socket.accept());
        called.expect("connects");
        assert_eq!(accepted.expect("accepted").1, THIS_MACHINE);
        drop(socket);
        assert_eq!(entries(), 0);

        // What a killed process has left is replaced; what is not a socket is not.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("listens"));
        let first = LocalSocket::bind(&path).expect("replaces it");
        fs::remove_file(&path).expect("removed");
        let second = LocalSocket::bind(&path).expect("listens");
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
        fs::write(&path, "notes").expect("written");
        let problem = LocalSocket::bind(&path).err().expect("a file").to_string();
        assert!(problem.contains("is not a socket"), "{problem}");
        assert_eq!(fs::read_to_string(&path).expect("there"), "notes");
        let problem = LocalSocket::bind(&folder.path().join("none/a.sock"));
        let problem = problem.err().expect("no folder").to_string();
        assert!(problem.contains("choose another path"), "{problem}");
    }
}
