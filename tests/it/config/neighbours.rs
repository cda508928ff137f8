//! What can be wrong with whom `covault serve` talks to: Redis and PostgreSQL.

use super::{
    Row, SECRET, Surroundings,
    postgres::{PASSWORD, USER},
    tls_fixture, tls_text,
};

fn serve(name: &'static str) -> Row {
    Row::of("serve", name)
}

pub fn rows(around: &Surroundings) -> Vec<Row> {
    let mut rows = settings_of_bus(around);
    rows.extend(answers_of_bus(around));
    rows.extend(store(around));
    rows
}

fn settings_of_bus(around: &Surroundings) -> Vec<Row> {
    let url = "bus.redis_url";
    let in_file = |name| {
        serve(name)
            .set(url, "")
            .text("bus.redis_url_file", "DIR/url")
    };
    vec![
        serve("a bus over HTTP")
            .text(url, "http://u:hunter2@h")
            .says_of_file(&["bus.redis_url: ", "use redis://[user:password@]host:port"]),
        serve("a port of the bus that is none")
            .text(url, "redis://u:hunter2@h:x")
            .says_of_file(&["bus.redis_url: ", "use redis://[user:password@]host:port"]),
        serve("a database of the bus that is no number")
            .text(url, "redis://u:hunter2@h/x")
            .says_of_file(&["bus.redis_url: Invalid database number"]),
        serve("two URLs of the bus")
            .text("bus.redis_url_file", "DIR/url")
            .says_of_file(&["bus.redis_url and bus.redis_url_file are both set: leave one"]),
        serve("an authority for a bus without TLS")
            .text("bus.ca_file", &tls_fixture("a.pem"))
            .says_of_file(&["bus.ca_file: is for TLS", "use rediss://"]),
        serve("a key for a bus without TLS")
            .text("bus.key_file", "DIR/key")
            .says_of_file(&[
                "bus.key_file: is for TLS",
                "bus.certificate_file",
                "set both",
            ]),
        serve("a namespace that is none")
            .text("bus.namespace", "Staging")
            .says_of_file(&[
                "bus.namespace: \"Staging\" cannot be used; use up to 40 small letters",
            ]),
        in_file("a URL of the bus that is not there")
            .says(&["bus.redis_url_file: cannot read DIR/url"]),
        in_file("a URL of the bus that others can read")
            .file("url", &around.redis_url(), 0o644)
            .says(&[
                "bus.redis_url_file: others than its owner",
                "chmod 600 DIR/url",
            ]),
        in_file("a file with no URL of the bus")
            .private("url", "http://u:hunter2@h")
            .says(&[
                "bus.redis_url_file: ",
                "use redis://[user:password@]host:port",
            ]),
    ]
}

fn answers_of_bus(around: &Surroundings) -> Vec<Row> {
    let (plain, right) = (around.redis.url(), around.redis_url());
    let place = plain.trim_start_matches("redis://").to_owned();
    let place = format!("Redis at {place}");
    let over_tls = around.redis_tls.url().replace("127.0.0.1", "localhost");
    let url = "bus.redis_url";
    let says = |words: &str| format!("bus.redis_url: {place} {words}");
    let certificate = |name, file: &str, words: &str| {
        serve(name)
            .text(url, &over_tls)
            .text("bus.ca_file", &tls_fixture(file))
            .says(&["bus.redis_url: ", "over TLS", words, "look at bus.ca_file"])
    };
    vec![
        serve("a wrong password of the bus")
            .text(url, &right.replace(SECRET, "hunter2x"))
            .says(&[
                &says("refuses the user or password of this URL"),
                "correct it",
            ]),
        serve("no password of the bus").text(url, &plain).says(&[
            &says("asks for a password"),
            "use redis://user:password@host:port",
        ]),
        serve("a user of the bus who may read nothing")
            .text(url, &right.replace("redis://", "redis://narrow"))
            .says(&[
                &says("does not allow the user of this URL to read"),
                "covault redis-acl",
            ]),
        serve("a database of the bus that is none")
            .text(url, &format!("{right}/99"))
            .says(&[
                &says("refuses the database of this URL"),
                "leave the number out",
            ]),
        serve("TLS with a bus without it")
            .text(url, &right.replace("redis://", "rediss://"))
            .says(&[
                "bus.redis_url: begins with rediss://",
                &place,
                "use redis://",
            ]),
        serve("a bus with TLS without it")
            .text(url, &over_tls.replace("rediss://", "redis://"))
            .says(&[
                "bus.redis_url: begins with redis://",
                "requires TLS; use rediss://",
            ]),
        certificate("an authority that is another", "b.pem", "certificate"),
        certificate(
            "a bus that asks for a certificate",
            "a.pem",
            "CertificateRequired",
        ),
        serve("a certificate for the bus with the key of another")
            .text(url, &over_tls)
            .text("bus.ca_file", &tls_fixture("a.pem"))
            .text("bus.certificate_file", &tls_fixture("client.pem"))
            .text("bus.key_file", "DIR/key")
            .private("key", &tls_text("a.key"))
            .says(&["bus.certificate_file and bus.key_file do not belong together"]),
    ]
}

fn store(around: &Surroundings) -> Vec<Row> {
    let server = &around.postgres;
    let good = server.database();
    let newer = server.database();
    let database = newer.rsplit('/').next().unwrap();
    server.query(
        database,
        "CREATE SCHEMA covault; CREATE TABLE covault.migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
         installed_on TIMESTAMPTZ NOT NULL DEFAULT now(), success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, \
         execution_time BIGINT NOT NULL); INSERT INTO covault.migrations VALUES (99, 'later', now(), true, '', 0)",
    );
    let postgres = |name| {
        serve(name)
            .text("store.kind", "postgres")
            .set("store.timeout_ms", "1000")
    };
    let url = "store.url";
    vec![
        postgres("PostgreSQL without a URL")
            .says(&["store.kind is \"postgres\": set COVAULT_STORE_URL"]),
        postgres("PostgreSQL with two URLs")
            .text(url, &good)
            .text("store.url_file", "DIR/url")
            .says(&["store.url and store.url_file are both set: leave one of them"]),
        postgres("a URL of PostgreSQL that is none")
            .text(url, SECRET)
            .says(&["store.url: must look like postgres://user:password@host:5432/database"]),
        postgres("a PostgreSQL that is away")
            .text(
                url,
                &format!("postgres://{USER}:{SECRET}@127.0.0.1:1/covault"),
            )
            .says(&["store.url: the PostgreSQL store cannot be used", "refused"]),
        postgres("a wrong password of PostgreSQL")
            .text(url, &good.replace(PASSWORD, SECRET))
            .says(&[
                "store.url: the PostgreSQL store cannot be used",
                "password authentication failed",
            ]),
        postgres("a database that is not there")
            .text("store.url_file", "DIR/url")
            .private("url", &server.url("nowhere"))
            .says(&[
                "store.url_file: the PostgreSQL store cannot be used",
                "\"nowhere\" does not exist",
            ]),
        postgres("a database without a store, and no word that one is to be made")
            .text(url, &server.database())
            .set("serve.init", "false")
            .prepare(super::serve::with_identity)
            .says(&[
                "store.url: the database holds no store of Covault",
                "covault serve --init",
            ]),
        postgres("a store of a newer program")
            .text(url, &newer)
            .says(&[
                "store.url: ",
                "version 99, which a newer Covault made",
                "start that newer version",
            ]),
    ]
}
