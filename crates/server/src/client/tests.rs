use http::HeaderValue;
use proptest::prelude::*;
use tollgate_config::{ClientHeader, parse};

use super::*;

/// Trusts 10.0.0.0/8 and fd00::/8, with `more` settings of `subjects`.
fn clients(more: &str) -> Clients {
    let text = format!(
        "version: 1\nsubjects: {{ trusted_proxies: [10.0.0.0/8, \"fd00::/8\"]{more} }}\nrules: []\n"
    );
    Clients::new(parse("rules.yaml", &text, &|_| None).unwrap().subjects)
}

/// Headers: names and values.
type Lines<'a> = &'a [(&'a str, &'a str)];

fn headers(lines: Lines<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        headers.append(HeaderName::try_from(*name).unwrap(), value);
    }
    headers
}

fn ip(clients: &Clients, peer: &str, lines: Lines<'_>) -> String {
    let headers = headers(lines);
    let client = clients.find(peer.parse().unwrap(), &headers).unwrap();
    client.address().to_string()
}

#[test]
fn priority_and_fairness_id_are_accepted_from_trusted_proxies_only() {
    let attributes = |clients: &Clients, peer: &str, lines: Lines<'_>| {
        let headers = headers(lines);
        let client = clients.find(peer.parse().unwrap(), &headers).unwrap();
        let attributes = client.into_attributes();
        let named = attributes.filter(|(name, _)| ["priority", "fairness_id"].contains(name));
        named
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
    };
    let lines = [
        ("x-gateway-inference-objective", "low"),
        ("x-gateway-inference-fairness-id", "team-a"),
        ("priority", "u=0"),
    ];
    let by_default = clients("");
    let expected = ["priority=low", "fairness_id=team-a"];
    assert_eq!(attributes(&by_default, "10.0.0.1", &lines), expected);
    assert!(attributes(&by_default, "192.0.2.1", &lines).is_empty());
    let own = clients(
        ", priorities: [gold, silver, bronze, rest], headers: { priority: Priority, fairness_id: off }",
    );
    assert_eq!(attributes(&own, "10.0.0.1", &lines), ["priority=gold"]);
    // Of four classes, the third is the usual one.
    for (header, expected) in [("u=3", "bronze"), ("silver", "silver"), ("u=7, i", "rest")] {
        let found = attributes(&own, "10.0.0.1", &[("priority", header)]);
        assert_eq!(found, [format!("priority={expected}")], "{header}");
    }
    // Repeated fields are one list, in which the last urgency counts.
    let repeated = [("priority", "u=0"), ("priority", "i"), ("priority", "u=7")];
    assert_eq!(attributes(&own, "10.0.0.1", &repeated), ["priority=rest"]);
    let two_names = [("priority", "gold"), ("priority", "silver")];
    assert!(attributes(&own, "10.0.0.1", &two_names).is_empty());
    assert!(attributes(&own, "192.0.2.1", &repeated).is_empty());
    assert!(attributes(&own, "10.0.0.1", &[("priority", "platinum")]).is_empty());
    assert!(attributes(&own, "192.0.2.1", &lines).is_empty());
}

#[test]
fn first_address_that_is_not_a_trusted_proxy_is_the_client() {
    let clients = clients("");
    let hundred = vec!["10.0.0.7"; 100].join(",");
    let spoofed = format!("{}, 192.0.2.1", vec!["203.0.113.9"; 100].join(", "));
    let xff = "x-forwarded-for";
    // The value of X-Forwarded-For that the proxy 10.0.0.1 sends, and the client.
    for (value, expected) in [
        // From the right, past trusted proxies.
        ("192.0.2.1", "192.0.2.1"),
        ("203.0.113.9, 192.0.2.1", "192.0.2.1"),
        ("203.0.113.9,192.0.2.1 , 10.0.0.2,10.0.0.3", "192.0.2.1"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        (",, 192.0.2.1 ,,", "192.0.2.1"),
        (" , ,", "10.0.0.1"),
        ("", "10.0.0.1"),
        // An unreadable address ends the search.
        ("192.0.2.1, garbage", "10.0.0.1"),
        ("192.0.2.1, unknown, 10.0.0.2", "10.0.0.2"),
        ("192.0.2.1\u{e9}", "10.0.0.1"),
        ("192.0.2.1 203.0.113.9", "10.0.0.1"),
        ("1.2.3.4.5", "10.0.0.1"),
        // Ports, brackets, zones and other notations.
        ("192.0.2.1:50123", "192.0.2.1"),
        ("[2001:db8::1]:50123, [fd00::2]:1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("203.0.113.9, ::ffff:10.0.0.2", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::1"),
        // A hundred addresses.
        (&hundred, "10.0.0.7"),
        (&spoofed, "192.0.2.1"),
    ] {
        let found = ip(&clients, "10.0.0.1", &[(xff, value)]);
        assert_eq!(found, expected, "{value}");
    }
    // The same with `Forwarded`, the standard header.
    for (value, expected) in [
        ("for=192.0.2.1", "192.0.2.1"),
        (
            "for=203.0.113.9, for=192.0.2.1;proto=https;by=10.0.0.1",
            "192.0.2.1",
        ),
        ("For=\"[2001:db8::1]:4711\", for=10.0.0.2", "2001:db8::1"),
        ("for=192.0.2.1, for=_hidden", "10.0.0.1"),
        ("for=192.0.2.1, proto=http", "10.0.0.1"),
        ("for=\"203.0.113.9, for=192.0.2.1", "192.0.2.1"),
    ] {
        let found = ip(&clients, "10.0.0.1", &[("forwarded", value)]);
        assert_eq!(found, expected, "{value}");
    }
    // Two headers.
    let forwarded = "forwarded";
    for (lines, expected) in [
        ([(xff, "203.0.113.9"), (xff, "192.0.2.1")], "192.0.2.1"),
        ([(xff, "192.0.2.1"), (xff, "10.0.0.2")], "192.0.2.1"),
        (
            [
                (forwarded, "x=\", for=203.0.113.9"),
                (forwarded, "for=192.0.2.1"),
            ],
            "192.0.2.1",
        ),
        // A header that may have only one address.
        (
            [("x-real-ip", "203.0.113.9"), ("x-real-ip", "192.0.2.1")],
            "10.0.0.1",
        ),
        // Only one header is used. The other headers change nothing.
        (
            [(forwarded, "for=203.0.113.9"), (xff, "192.0.2.1")],
            "192.0.2.1",
        ),
        (
            [("x-real-ip", "203.0.113.9"), (forwarded, "for=192.0.2.1")],
            "192.0.2.1",
        ),
        ([(xff, "garbage"), ("x-real-ip", "203.0.113.9")], "10.0.0.1"),
    ] {
        assert_eq!(ip(&clients, "10.0.0.1", &lines), expected, "{lines:?}");
    }
    // Another peer, or another header. A peer that is not a trusted proxy is the client, whatever it
    // sends. A proxy that sends no address counts as the client.
    for (peer, name, value, expected) in [
        ("192.0.2.9", "x-other", "", "192.0.2.9"),
        ("192.0.2.9", xff, "203.0.113.9", "192.0.2.9"),
        ("192.0.2.9", "x-real-ip", "10.0.0.1", "192.0.2.9"),
        ("192.0.2.9", forwarded, "for=203.0.113.9", "192.0.2.9"),
        ("::ffff:192.0.2.9", "x-other", "", "192.0.2.9"),
        ("10.0.0.1", "x-other", "", "10.0.0.1"),
        ("::ffff:10.0.0.1", xff, "192.0.2.1", "192.0.2.1"),
        ("fd00::1", xff, "2001:db8::1, fd00::2", "2001:db8::1"),
        ("10.0.0.1", "x-real-ip", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "x-real-ip", "1.2.3.4, 192.0.2.1", "10.0.0.1"),
    ] {
        let found = ip(&clients, peer, &[(name, value)]);
        assert_eq!(found, expected, "{peer} {name} {value}");
    }
}

#[test]
fn header_that_counts_can_be_configured() {
    let lines = [
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.2"),
        ("x-real-ip", "192.0.2.3"),
    ];
    for (name, expected) in [
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "192.0.2.2"),
        ("x-real-ip", "192.0.2.3"),
    ] {
        let clients = clients(&format!(", client_header: {name}"));
        assert_eq!(ip(&clients, "10.0.0.1", &lines), expected);
        assert_eq!(
            ip(&clients, "10.0.0.1", &[("x-other", "1.1.1.1")]),
            "10.0.0.1"
        );
    }
}

/// Returns the attributes of a request, as `name=value`.
fn attributes(clients: &Clients, peer: &str, lines: Lines<'_>) -> String {
    let headers = headers(lines);
    let client = clients.find(peer.parse().unwrap(), &headers).unwrap();
    let pairs = client.into_attributes().map(|(n, v)| format!("{n}={v}"));
    pairs.collect::<Vec<_>>().join(" ")
}

#[test]
fn subject_is_the_key_then_the_user_then_the_account_then_the_address() {
    let clients = clients("");
    let all = [
        ("x-service-account", "robot"),
        ("x-user-id", "ann"),
        ("x-api-key", "k1"),
        ("x-tenant-id", "acme"),
        ("authorization", "Bearer x"),
    ];
    let proxied = |lines: Lines<'_>| attributes(&clients, "10.0.0.1", lines);
    assert_eq!(
        proxied(&all),
        "ip=10.0.0.1 api_key=k1 user=ann service_account=robot tenant=acme \
         subject=api_key:k1 subject_type=api_key"
    );
    assert!(proxied(&all[..2]).ends_with("subject=user:ann subject_type=user"));
    assert!(
        proxied(&all[..1]).ends_with("subject=service_account:robot subject_type=service_account")
    );
    assert_eq!(
        proxied(&all[3..]),
        "ip=10.0.0.1 tenant=acme subject=ip:10.0.0.1 subject_type=ip"
    );
    // An empty header counts as absent.
    assert_eq!(
        proxied(&[("x-api-key", "  "), ("x-user-id", " ann ")]),
        "ip=10.0.0.1 user=ann subject=user:ann subject_type=user"
    );
    // A client without a proxy can only present an API key.
    assert_eq!(
        attributes(&clients, "192.0.2.1", &all),
        "ip=192.0.2.1 api_key=k1 subject=api_key:k1 subject_type=api_key"
    );
}

#[test]
fn ipv6_client_is_its_prefix() {
    let lines = [("x-forwarded-for", "2001:db8::7")];
    assert_eq!(
        attributes(&clients(""), "10.0.0.1", &lines),
        "ip=2001:db8::7 subject=ip:2001:db8::/64 subject_type=ip"
    );
    assert_eq!(
        attributes(&clients(", ipv6_prefix: 48"), "10.0.0.1", &lines),
        "ip=2001:db8::7 subject=ip:2001:db8::/48 subject_type=ip"
    );
}

#[test]
fn headers_can_be_renamed_and_left_out() {
    let clients = clients(", headers: { api_key: off, user: Remote-User, tenant: x-org }");
    let lines = [
        ("x-api-key", "k1"),
        ("x-user-id", "eve"),
        ("remote-user", "ann"),
        ("x-org", "acme"),
    ];
    assert_eq!(
        attributes(&clients, "10.0.0.1", &lines),
        "ip=10.0.0.1 user=ann tenant=acme subject=user:ann subject_type=user"
    );
}

#[test]
fn traffic_is_marked_by_its_network_or_by_a_proxy() {
    let clients = clients(", internal: [192.0.2.0/24], test_header: x-test");
    let traffic = |peer: &str, lines: Lines<'_>| {
        let found = attributes(&clients, peer, lines);
        let traffic = found.split(' ').find_map(|it| it.strip_prefix("traffic="));
        traffic.map(str::to_owned)
    };
    let (forwarded, test) = (("x-forwarded-for", "192.0.2.1"), ("x-test", "1"));
    let is = |traffic: &str| Some(traffic.to_owned());
    assert_eq!(traffic("203.0.113.1", &[]), None);
    assert_eq!(traffic("192.0.2.1", &[]), is("internal"));
    assert_eq!(traffic("10.0.0.1", &[forwarded]), is("internal"));
    assert_eq!(traffic("203.0.113.1", &[forwarded]), None);
    assert_eq!(traffic("10.0.0.1", &[("x-test", "")]), is("test"));
    assert_eq!(traffic("10.0.0.1", &[test, forwarded]), is("test"));
    assert_eq!(traffic("203.0.113.1", &[test]), None);
}

#[test]
fn ambiguous_or_bad_client_headers_are_rejected() {
    let clients = clients("");
    let long = "k".repeat(MAX_VALUE + 1);
    let find = |lines: Lines<'_>| {
        let headers = headers(lines);
        let found = clients.find("10.0.0.1".parse().unwrap(), &headers);
        found.map(|_| ()).map_err(|error| error.to_string())
    };
    let longest = attributes(&clients, "10.0.0.1", &[("x-api-key", &long[1..])]);
    let subject = longest
        .split(' ')
        .find_map(|it| it.strip_prefix("subject="));
    assert_eq!(subject.unwrap().len(), MAX_VALUE + 8);
    assert_eq!(
        find(&[("x-api-key", &long)]).unwrap_err(),
        "the header x-api-key is longer than 1024 bytes"
    );
    assert_eq!(
        find(&[("x-user-id", "ann"), ("x-user-id", "ann")]).unwrap_err(),
        "the header x-user-id is given more than once"
    );
    let mut latin = HeaderMap::new();
    latin.insert("x-tenant-id", HeaderValue::from_bytes(b"caf\xe9").unwrap());
    let found = clients.find("10.0.0.1".parse().unwrap(), &latin);
    assert_eq!(
        found.unwrap_err().to_string(),
        "the header x-tenant-id is not UTF-8 text"
    );
    // A header that is not trusted is not read at all.
    let spoofed = headers(&[("x-user-id", "a"), ("x-user-id", "b")]);
    assert!(clients.find("192.0.2.1".parse().unwrap(), &spoofed).is_ok());
}

#[test]
fn address_sent_as_a_key_is_not_that_address() {
    let clients = clients("");
    let key = attributes(&clients, "203.0.113.1", &[("x-api-key", "192.0.2.1")]);
    let address = attributes(&clients, "192.0.2.1", &[]);
    assert!(key.contains("subject=api_key:192.0.2.1"), "{key}");
    assert!(address.contains("subject=ip:192.0.2.1"), "{address}");
}

fn trusted() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d])),
        any::<[u8; 15]>().prop_map(|rest| {
            let mut octets = [0xfd; 16];
            octets[1..].copy_from_slice(&rest);
            IpAddr::from(octets)
        }),
    ]
}

fn stranger() -> impl Strategy<Value = IpAddr> {
    let any = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical()),
    ];
    any.prop_filter("a stranger", |address| !clients("").is_trusted(*address))
}

/// Writes an address in one of the ways that proxies use.
fn written(address: IpAddr, way: u8) -> String {
    match (address, way % 4) {
        (IpAddr::V4(address), 0) => address.to_string(),
        (IpAddr::V4(address), 1) => format!("{address}:{}", 1000 + u16::from(way)),
        (IpAddr::V4(address), 2) => address.to_ipv6_mapped().to_string(),
        (IpAddr::V4(address), _) => format!("[{}]:80", address.to_ipv6_mapped()),
        (IpAddr::V6(address), 0) => address.to_string(),
        (IpAddr::V6(address), 1) => format!("[{address}]"),
        (IpAddr::V6(address), 2) => format!("[{address}]:{way}"),
        (IpAddr::V6(address), _) => format!("{address}%eth{way}"),
    }
}

/// Generates texts that a client may put into a header before any proxy sees it.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("10.0.0.1".to_owned()),
        Just("203.0.113.9".to_owned()),
        Just("for=10.0.0.1".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just(",".to_owned()),
        Just(";".to_owned()),
        "[ -~]{0,12}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_client_chooses_its_address(
        client in stranger(),
        proxies in proptest::collection::vec(trusted(), 1..6),
        own in proptest::collection::vec(hostile(), 0..3),
        ways: [u8; 8],
        by_line: bool,
        standard: bool,
    ) {
        // Each proxy appends the address of its peer. The last proxy connects to the server.
        let (peer, between) = proxies.split_last().unwrap();
        let added: Vec<String> = std::iter::once(&client)
            .chain(between)
            .zip(ways)
            .map(|(address, way)| match standard {
                false => written(*address, way),
                true => format!("by=_x;For=\"{}\";proto=https", match address {
                    IpAddr::V4(address) => format!("{address}:{way}"),
                    IpAddr::V6(address) => format!("[{address}]:{way}"),
                }),
            })
            .collect();
        let name = if standard { "forwarded" } else { "x-forwarded-for" };
        let mut lines: Vec<(&str, String)> = own.iter().map(|it| (name, it.clone())).collect();
        match lines.last_mut() {
            Some((_, last)) if !by_line => *last = format!("{last}, {}", added.join(", ")),
            _ => lines.extend(added.into_iter().map(|it| (name, it))),
        }
        lines.push(("x-real-ip", "203.0.113.9".to_owned()));
        let lines: Vec<(&str, &str)> = lines.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let found = ip(&clients(""), &peer.to_string(), &lines);
        prop_assert_eq!(found, client.to_string());
    }

    #[test]
    fn nothing_panics(
        peer in prop_oneof![trusted(), stranger()],
        values in proptest::collection::vec((0..7usize, proptest::collection::vec(any::<u8>(), 0..80)), 0..8),
        which in 0..4usize,
    ) {
        let names = ["x-forwarded-for", "forwarded", "x-real-ip", "x-api-key", "x-user-id", "x-tenant-id", "x"];
        let mut subjects = clients("").subjects;
        subjects.client_header = [
            None,
            Some(ClientHeader::XForwardedFor),
            Some(ClientHeader::Forwarded),
            Some(ClientHeader::XRealIp),
        ][which];
        let mut headers = HeaderMap::new();
        for (name, value) in &values {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(names[*name], value);
            }
        }
        let trusted = subjects.is_trusted(peer);
        if let Ok(client) = Clients::new(subjects).find(peer, &headers) {
            prop_assert!(trusted || client.address() == peer);
        }
    }
}
