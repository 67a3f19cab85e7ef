<?php
// PHP's client of memcached, with a gateway: php-memcached, which speaks text by default.
//
//   php clients.php HOST:PORT HOST:PORT PASSWORD
//
// The second address is the gateway's for memcached, the first one is not used.

declare(strict_types=1);

function want(bool $ok, string $what): void
{
    if (!$ok) {
        fwrite(STDERR, "php: wrong: $what\n");
        exit(1);
    }
}

function client(string $address): Memcached
{
    [$host, $port] = explode(':', $address);
    $client = new Memcached();
    want($client->addServer($host, (int) $port), 'addServer');
    return $client;
}

function values(Memcached $c): void
{
    want($c->set('k', 'v') && $c->get('k') === 'v', 'set');
    want($c->get('none') === false, 'get of nothing');
    want($c->getResultCode() === Memcached::RES_NOTFOUND, 'the code of nothing');
    want($c->add('new', '1') && !$c->add('new', '2'), 'add');
    want($c->getResultCode() === Memcached::RES_NOTSTORED, 'the code of an add too late');
    want($c->replace('new', '3') && !$c->replace('none', '3'), 'replace');
    $c->setOption(Memcached::OPT_COMPRESSION, false); // It appends to nothing that is packed.
    want($c->append('new', '4') && $c->prepend('new', '2'), 'append, prepend');
    $c->setOption(Memcached::OPT_COMPRESSION, true);
    want($c->get('new') === '234', 'appended and prepended');
    $seen = $c->get('new', null, Memcached::GET_EXTENDED);
    want($seen['value'] === '234' && $seen['flags'] === 0, 'gets');
    want($c->cas($seen['cas'], 'new', '5') && !$c->cas($seen['cas'], 'new', '6'), 'cas');
    want($c->getResultCode() === Memcached::RES_DATA_EXISTS, 'the code of a cas too late');
    want($c->get('new') === '5', 'the value of the first cas');
    want($c->delete('new') && !$c->delete('new') && $c->get('new') === false, 'delete');
    // Values that are no strings have flags, and long ones are packed.
    $values = ['number' => 7, 'float' => 1.5, 'true' => true, 'null' => null, 'list' => ['a' => []]];
    foreach ($values as $key => $value) {
        want($c->set($key, $value) && $c->get($key) === $value, $key);
        want($c->getResultCode() === Memcached::RES_SUCCESS, "the code of $key");
    }
    want($c->set('text', str_repeat('text ', 100000)), 'a text');
    want($c->get('text') === str_repeat('text ', 100000), 'a text again');
    $bytes = '';
    for ($byte = 0; $byte < 256; $byte++) {
        $bytes .= chr($byte);
    }
    $c->setOption(Memcached::OPT_COMPRESSION, false);
    want($c->set('long', str_repeat($bytes, 4000)), 'set of a long value');
    want($c->get('long') === str_repeat($bytes, 4000), 'a long value');
    $c->setOption(Memcached::OPT_COMPRESSION, true);
}

function many(Memcached $c): void
{
    want($c->setMulti(['a' => '1', 'b' => '2']), 'setMulti');
    want($c->getMulti(['a', 'none', 'b']) === ['a' => '1', 'b' => '2'], 'getMulti');
    $deleted = $c->deleteMulti(['a', 'none']);
    want($deleted === ['a' => true, 'none' => Memcached::RES_NOTFOUND], 'deleteMulti');
    for ($i = 0; $i < 1000; $i++) {
        $pairs["p$i"] = "$i";
    }
    want($c->setMulti($pairs) && $c->getMulti(array_keys($pairs)) === $pairs, 'many keys');
    want($c->getDelayed(['p1', 'p2'], true), 'getDelayed');
    $values = array_column($c->fetchAll(), 'value', 'key');
    ksort($values);
    want($values === ['p1' => '1', 'p2' => '2'], 'fetchAll');
}

function numbers(Memcached $c): void
{
    want($c->set('n', 10) && $c->increment('n', 5) === 15, 'increment');
    want($c->decrement('n', 100) === 0, 'decrement');
    want($c->increment('none') === false, 'increment of nothing');
    want($c->getResultCode() === Memcached::RES_NOTFOUND, 'the code of an increment of nothing');
    want($c->set('word', 'word') && $c->increment('word') === false, 'increment of a word');
    want($c->getResultCode() === Memcached::RES_CLIENT_ERROR, 'the code of a word');
    want($c->get('word') === 'word', 'get after an error');
}

function expiry(Memcached $c): void
{
    want($c->set('e', 'v', 1000) && $c->touch('e', 2000) && $c->get('e') === 'v', 'touch');
    want(!$c->touch('none', 1000), 'touch of nothing');
    want($c->set('e', 'v', 1000000000) && $c->get('e') === false, 'a time that has passed');
    want($c->set('e', 'v', -1) && $c->get('e') === false, 'a negative time');
}

function server(Memcached $c): void
{
    want(array_values($c->getVersion()) === ['1.6.18'], 'version');
    $stats = array_values($c->getStats())[0];
    want($stats['pid'] > 0 && $stats['curr_items'] >= 1000, 'stats');
}

$c = client($argv[2]);
want($c->set('auth', "user $argv[3]"), 'the password');
want($c->flush() && $c->get('k') === false, 'flush');
values($c);
many($c);
numbers($c);
expiry($c);
server($c);

$prefixed = client($argv[2]);
want($prefixed->set('auth', "user $argv[3]"), 'the password again');
$prefixed->setOption(Memcached::OPT_PREFIX_KEY, 'prefix:');
want($prefixed->set('k', 'w') && $c->get('prefix:k') === 'w' && $c->get('k') === 'v', 'a prefix');

$wrong = client($argv[2]);
want(!$wrong->set('auth', 'user wrong'), 'a wrong password');
want($wrong->getResultCode() === Memcached::RES_CLIENT_ERROR, 'the code of a wrong password');

echo 'php: php-memcached ', phpversion('memcached'), " passed\n";
