//! Leases and RDMA: the agent is never asked about an operation, and yet none succeeds once the
//! lease is over. Over a real device, or skipped loudly.

use crate::client::*;
use crate::device::has_verbs;
use annex_fabric::ErrorKind;
use annex_fabric::verbs::VerbsError;
use annex_shared::wire::VerbsOffer;

#[test]
fn a_returned_slab_is_out_of_reach_of_its_last_tenant_and_zero_for_the_next() {
    if !has_verbs() {
        return;
    }
    let (agent, _dir) = agent(1, |_| ());
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let old = anna.lease(1)[0];
    let (mut data, connector) = Data::verbs(agent.addr(), ANNA, &welcome, old.rkey);
    data.write(old.rkey, 7).unwrap();
    assert_eq!(data.read(old.rkey).unwrap(), vec![7; SLAB as usize]);
    anna.give_back(vec![old.slab]);
    assert_eq!(data.read(old.rkey), Err(ErrorKind::RemoteAccess));

    let (mut bert, welcome) = Client::greet(agent.addr(), BERT);
    let new = bert.lease(1)[0];
    assert_eq!(new.slab, old.slab);
    let (mut theirs, _bert_connector) = Data::verbs(agent.addr(), BERT, &welcome, new.rkey);
    assert_eq!(theirs.read(new.rkey).unwrap(), vec![0; SLAB as usize]);
    theirs.write(new.rkey, 9).unwrap();
    // The client still knows what the device called it.
    let mut again = Data::try_of(&connector).unwrap();
    assert_eq!(again.write(old.rkey, 7), Err(ErrorKind::RemoteAccess));
    assert_eq!(theirs.read(new.rkey).unwrap(), vec![9; SLAB as usize]);
}

#[test]
fn a_lease_that_is_not_renewed_ends_at_the_device_too() {
    if !has_verbs() {
        return;
    }
    let (agent, _dir) = agent(1, |c| c.lease_ttl = ttl(1500));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, _connector) = Data::verbs(agent.addr(), ANNA, &welcome, lease.rkey);
    anna.renew();
    data.write(lease.rkey, 7).unwrap();
    let mut last = Ok(());
    wait_until("the lease to end", || {
        last = data.read(lease.rkey).map(drop);
        last.is_err()
    });
    assert_eq!(last, Err(ErrorKind::RemoteAccess));
    assert_eq!(anna.renew(), []);
}

#[test]
fn a_connection_without_leases_registers_nothing() {
    if !has_verbs() {
        return;
    }
    let (agent, _dir) = agent(2, |_| ());
    let (mut anna, _) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (_bert, welcome) = Client::greet(agent.addr(), BERT);
    let connector = rdma(agent.addr(), BERT, &welcome).unwrap();
    assert!(connector.prepare(lease.rkey).is_err(), "another client's key");
    anna.give_back(vec![lease.slab]);
    assert!(connector.prepare(lease.rkey).is_err(), "nobody's key");
}

#[test]
fn an_agent_that_ends_takes_the_endpoints_along() {
    if !has_verbs() {
        return;
    }
    let (agent, _dir) = agent(1, |c| c.grace = ttl(100));
    let (mut anna, welcome) = Client::greet(agent.addr(), ANNA);
    let lease = anna.lease(1)[0];
    let (mut data, connector) = Data::verbs(agent.addr(), ANNA, &welcome, lease.rkey);
    data.write(lease.rkey, 7).unwrap();
    agent.shutdown();
    assert!(data.read(lease.rkey).is_err());
    wait_until("the connector to notice", || !connector.is_alive());
    assert!(Data::try_of(&connector).is_err());
}

#[test]
fn an_agent_says_which_device_it_offers() {
    if !has_verbs() {
        return;
    }
    let (agent, _dir) = agent(1, |_| ());
    let (_anna, welcome) = Client::greet(agent.addr(), ANNA);
    let VerbsOffer::Over(device) = welcome.verbs else { panic!("{:?}", welcome.verbs) };
    assert!(device.contains(" port 1, ") && device.contains("GID"), "{device}");
}

#[test]
fn an_agent_that_is_told_not_to_offers_no_rdma() {
    let (agent, _dir) = agent(1, |c| c.verbs.enabled = false);
    let (_anna, welcome) = Client::greet(agent.addr(), ANNA);
    let VerbsOffer::No(why) = &welcome.verbs else { panic!("{:?}", welcome.verbs) };
    assert!(why.contains("enabled = false"), "{why}");
    if has_verbs() {
        let refused = rdma(agent.addr(), ANNA, &welcome).unwrap_err();
        assert!(
            matches!(refused, VerbsError::Connect(_)) && refused.to_string().contains("does not offer"),
            "{refused}"
        );
    }
}
