"""Images: the effects of records, refused records, and undo."""

from __future__ import annotations

import copy
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.protocol.kraft.records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    Endpoint,
    FeatureLevelRecord,
    FeatureRange,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from diamant.storage.kraft.image import InconsistentMetadata, MetadataImage, PartitionImage, Undo, undo_changes
from tests.effort import examples
from tests.storage.kraft import metadata_directory

FOO = UUID(int=0xF00)
BAR = UUID(int=0xBA8)
DIRECTORY = UUID(int=0xD18)
ACL = UUID(int=0xAC1)


def partition(topic_id: UUID = FOO, number: int = 0) -> PartitionRecord:
    """Return a fresh partition as a single node creates it."""
    return metadata_directory.partition(topic_id, number, DIRECTORY)


def registration(epoch: int = 7) -> RegisterBrokerRecord:
    """Return the registration of broker 1."""
    return RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=UUID(int=epoch),
        broker_epoch=epoch,
        end_points=(Endpoint("PLAINTEXT", "localhost", 9092),),
        features=(FeatureRange("metadata.version", 7, 30),),
        log_dirs=(DIRECTORY,),
    )


def acl() -> AccessControlEntryRecord:
    """Return an ACL."""
    return AccessControlEntryRecord(
        id=ACL,
        resource_type=2,
        resource_name="foo",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )


def scram(name: str = "alice", mechanism: int = 1) -> UserScramCredentialRecord:
    """Return a credential."""
    return UserScramCredentialRecord(
        name=name, mechanism=mechanism, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )


def token() -> DelegationTokenRecord:
    """Return a delegation token."""
    return DelegationTokenRecord(
        owner="User:a",
        requester="User:a",
        renewers=("User:b",),
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id="t",
    )


def config(name: str, value: str | None, topic: str = "foo") -> ConfigRecord:
    """Return a topic's config."""
    return ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)


def quota(limit: float, *, remove: bool = False) -> ClientQuotaRecord:
    """Return a quota of the default client."""
    return ClientQuotaRecord(
        entity=(QuotaEntity("client-id", None),), key="producer_byte_rate", value=limit, remove=remove
    )


def image_of(*records: MetadataRecord) -> MetadataImage:
    """Return the image after some records."""
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


FULL: list[MetadataRecord] = [
    FeatureLevelRecord(name="metadata.version", feature_level=30),
    FeatureLevelRecord(name="group.version", feature_level=1),
    registration(),
    RegisterControllerRecord(
        controller_id=1,
        incarnation_id=UUID(int=5),
        end_points=(Endpoint("CONTROLLER", "localhost", 9093),),
        features=(FeatureRange("metadata.version", 7, 30),),
    ),
    TopicRecord(name="foo", topic_id=FOO),
    partition(),
    partition(number=1),
    TopicRecord(name="bar", topic_id=BAR),
    partition(BAR),
    config("cleanup.policy", "compact"),
    ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
    quota(5.0),
    ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=1000),
    acl(),
    scram(),
    token(),
]


def test_a_topic_with_partitions_and_configs() -> None:
    """A topic is found by name and by id, with its partitions; its configs by resource."""
    image = image_of(*FULL)
    topic = image.topics["foo"]
    assert image.topics_by_id[FOO] is topic
    assert topic.partitions[1] == PartitionImage(1, (1,), (1,), 1, 0, 0, (DIRECTORY,))
    assert image.configs == {(2, "foo"): {"cleanup.policy": "compact"}, (4, ""): {"min.insync.replicas": "1"}}
    assert image.metadata_version == 30
    assert image.next_producer_id == 1000


def test_the_leader_epoch_grows_with_every_leader_named() -> None:
    """Naming a leader, the same one or none, adds 1 to the leader epoch; every change adds 1 to the partition epoch."""
    image = image_of(TopicRecord(name="foo", topic_id=FOO), partition())
    partitions = image.topics["foo"].partitions
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=FOO, leader=-1))
    assert partitions[0] == PartitionImage(0, (1,), (1,), -1, 1, 1, (DIRECTORY,))
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=FOO, leader=1))
    assert partitions[0] == PartitionImage(0, (1,), (1,), 1, 2, 2, (DIRECTORY,))
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=FOO, leader=1))
    assert partitions[0] == PartitionImage(0, (1,), (1,), 1, 3, 3, (DIRECTORY,))
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=FOO, isr=()))
    assert partitions[0] == PartitionImage(0, (1,), (), 1, 3, 4, (DIRECTORY,))


def test_a_change_touches_what_it_names() -> None:
    """Every field that a change names is replaced, every other stays."""
    image = image_of(TopicRecord(name="foo", topic_id=FOO), partition())
    image.apply(
        PartitionChangeRecord(
            partition_id=0,
            topic_id=FOO,
            isr=(),
            leader=-1,
            eligible_leader_replicas=(1,),
            last_known_elr=(1,),
            leader_recovery_state=1,
            removing_replicas=(3,),
            adding_replicas=(4,),
        )
    )
    changed = image.topics["foo"].partitions[0]
    assert changed == PartitionImage(0, (1,), (), -1, 1, 1, (DIRECTORY,), (3,), (4,), 1, (1,), (1,))
    image.apply(PartitionChangeRecord(partition_id=0, topic_id=FOO))
    assert image.topics["foo"].partitions[0] == changed._replace(partition_epoch=2)
    image.apply(ClearElrRecord(topic_name=""))
    cleared = changed._replace(partition_epoch=3, eligible_leader_replicas=(), last_known_elr=())
    assert image.topics["foo"].partitions[0] == cleared


def test_removing_a_topic_removes_its_configs() -> None:
    """A topic of the same name later begins without the configs of the first."""
    image = image_of(*FULL)
    image.apply(RemoveTopicRecord(topic_id=FOO))
    assert "foo" not in image.topics
    assert FOO not in image.topics_by_id
    assert (2, "foo") not in image.configs
    image.apply(TopicRecord(name="foo", topic_id=UUID(int=9)))


def test_a_config_set_to_null_is_gone() -> None:
    """Null resets a config, even one that was never set."""
    image = image_of(config("retention.ms", "1"), config("segment.ms", "2"))
    image.apply(config("retention.ms", None))
    image.apply(config("retention.ms", None))
    assert image.configs == {(2, "foo"): {"segment.ms": "2"}}
    image.apply(config("segment.ms", None))
    assert image.configs == {}


def test_the_life_of_a_registration() -> None:
    """A broker is registered fenced, unfenced, shut down in order, fenced, unregistered."""
    image = image_of(registration())
    assert image.brokers[1].fenced
    for change, expected in [
        (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1), (False, False)),
        (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, in_controlled_shutdown=1), (False, True)),
        (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=1), (True, True)),
        (UnfenceBrokerRecord(id=1, epoch=7), (False, True)),
        (FenceBrokerRecord(id=1, epoch=7), (True, True)),
    ]:
        image.apply(change)
        assert (image.brokers[1].fenced, image.brokers[1].in_controlled_shutdown) == expected
    image.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, log_dirs=(BAR,), cordoned_log_dirs=(BAR,)))
    assert (image.brokers[1].log_dirs, image.brokers[1].cordoned_log_dirs) == ((BAR,), (BAR,))
    image.apply(UnregisterBrokerRecord(broker_id=1, broker_epoch=7))
    assert image.brokers == {}


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (TopicRecord(name="foo", topic_id=UUID(int=1)), "topic already exists with id"),
        (TopicRecord(name="new", topic_id=FOO), "the id belongs to topic foo"),
        (partition(UUID(int=1)), "no topic has this id"),
        (PartitionChangeRecord(partition_id=0, topic_id=UUID(int=1)), "no topic has this id"),
        (PartitionChangeRecord(partition_id=9, topic_id=FOO), "topic foo has no such partition"),
        (PartitionChangeRecord(partition_id=0, topic_id=FOO, directories=(BAR, BAR)), "2 directories for 1 replicas"),
        (RemoveTopicRecord(topic_id=UUID(int=1)), "no topic has this id"),
        (ClearElrRecord(topic_name="new"), "no such topic"),
        (ProducerIdsRecord(broker_id=1, next_producer_id=1000), "the next producer id is already 1000"),
        (BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=7), "no such broker is registered"),
        (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=8), "registered with epoch 7"),
        (UnregisterBrokerRecord(broker_id=1, broker_epoch=8), "registered with epoch 7"),
        (RemoveAccessControlEntryRecord(id=FOO), "no such ACL"),
        (RemoveUserScramCredentialRecord(name="alice", mechanism=2), "no such credential"),
        (BeginTransactionRecord(), "changes no metadata by itself"),
    ],
)
def test_a_record_that_would_stop_a_real_controller_is_refused(record: MetadataRecord, complaint: str) -> None:
    """A record that contradicts the image is refused with the reason, and changes nothing."""
    image = image_of(*FULL)
    before = copy.deepcopy(image)
    with pytest.raises(InconsistentMetadata, match=complaint) as caught:
        image.apply(record)
    assert type(record).__name__ in str(caught.value)
    assert image == before


def test_a_snapshot_begins_with_the_features() -> None:
    """The records of an image are in an order in which they can be applied, metadata.version first."""
    records = list(image_of(*FULL).to_records())
    assert [type(record) for record in records] == [type(record) for record in FULL]
    assert records[0] == FULL[0]


CHANGES: list[MetadataRecord] = [
    TopicRecord(name="new", topic_id=UUID(int=3)),
    partition(UUID(int=3)),
    partition(FOO, 5),
    PartitionChangeRecord(partition_id=0, topic_id=FOO, leader=-1),
    RemoveTopicRecord(topic_id=FOO),
    RemoveTopicRecord(topic_id=UUID(int=3)),
    config("cleanup.policy", None),
    config("cleanup.policy", "delete"),
    config("segment.ms", "5"),
    config("segment.ms", "5", "new"),
    FeatureLevelRecord(name="group.version", feature_level=0),
    FeatureLevelRecord(name="transaction.version", feature_level=2),
    registration(9),
    BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1),
    UnregisterBrokerRecord(broker_id=1, broker_epoch=7),
    ProducerIdsRecord(broker_id=1, next_producer_id=2000),
    ZkMigrationStateRecord(zk_migration_state=3),
    NoOpRecord(),
    quota(1.0),
    quota(1.0, remove=True),
    RemoveAccessControlEntryRecord(id=ACL),
    acl(),
    scram("bob", 2),
    RemoveUserScramCredentialRecord(name="alice", mechanism=1),
    RemoveDelegationTokenRecord(token_id="t"),
    ClearElrRecord(topic_name="foo"),
]


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(CHANGES), max_size=20))
def test_any_image_survives_its_own_records_and_can_be_taken_back(records: list[MetadataRecord]) -> None:
    """The snapshot of any image rebuilds it; any sequence applied and undone, with refused records, leaves it unchanged."""
    image = image_of(*FULL)
    before = copy.deepcopy(image)
    undo: Undo = []
    for record in records:
        with suppress(InconsistentMetadata):
            image.apply(record, undo)
    assert image_of(*image.to_records()) == image
    undo_changes(undo)
    assert image == before
    assert image.topics["foo"] is image.topics_by_id[FOO]
